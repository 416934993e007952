"""What one block computed, by name."""

from __future__ import annotations

import inspect
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch

from slimformer.anatomy import find
from slimformer.anatomy.scores import additive_mask, attention_scores
from slimformer.errors import TapError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from slimformer.anatomy import Anatomy, Block, Part

Name = Literal["q", "k", "v", "scores", "map", "context", "mha", "attention_output", "ffn", "output"]
_ROLES = {"q": "query", "k": "key", "v": "value"}


class BlockRecord:
    """What one block computed in one forward. A name that was not asked for raises `TapError`.

    Shapes are [batch, length, hidden] unless said otherwise.

    Attributes:
        q: Queries, heads side by side: [batch, length, heads x width]; after the family's query norm, if it has one,
            and before positions turn them.
        k: Keys, likewise.
        v: Output of the value projection, likewise.
        scores: Scaled scores with position terms, before any mask: [batch, heads, query, key].
        map: Softmax of the masked scores, in float32, before dropout: [batch, heads, query, key].
        context: Weighted values, the input of the output projection: [batch, length, heads x width].
        mha: Output of the attention's output projection.
        attention_output: Output of the attention sub-layer, residual (and norm, where it follows) included.
        ffn: Output of the last feed-forward matrix.
        output: Output of the block.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self._kept: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in get_args(Name):
            raise AttributeError(name)
        if name == "attention_output" and self.block.parallel:
            summed: Tensor = self._get("input") + self._get("mha")
            return summed
        value: Tensor = self._get(name)
        if name in _ROLES and _norm_of(self.block, name) is not None:
            return value.flatten(2)  # a norm of each head leaves them apart
        part: Part | None = getattr(self.block, _ROLES[name]).part if name in _ROLES else None
        return value if part is None else part.take(value, dim=-1)

    @cached_property
    def scores(self) -> Tensor:
        """Scaled attention scores, before any mask: [batch, heads, query, key]."""
        if "call" not in self._kept:
            raise TapError(
                f"`scores` and `map` of block {self.block.index} were not recorded; ask for them with `record=`"
            )
        call = self._get("call")
        past = call.get("past_key_values", call.get("layer_past"))
        if past is not None and call["past_length"] > 0:
            raise TapError(
                f"block {self.block.index} attended to {call['past_length']} cached tokens whose keys were not "
                "recorded; run the whole sequence with `use_cache=False`"
            )
        return attention_scores(self.block, self.q, self.k, call)

    @cached_property
    def mask(self) -> Tensor | None:
        """What was added to the scores before the softmax, broadcastable to them; None for nothing."""
        return additive_mask(self.block, self.scores, self._get("call"))

    @cached_property
    def map(self) -> Tensor:
        """Attention probabilities before dropout, in float32 at least: [batch, heads, query, key]."""
        scores = self.scores.to(torch.promote_types(self.scores.dtype, torch.float32))
        return (scores if self.mask is None else scores + self.mask).softmax(dim=-1)

    def keep(self, name: str, value: Any) -> None:
        """Note what was computed."""
        self._kept[name] = value

    def _get(self, name: str) -> Any:
        if name not in self._kept:
            raise TapError(
                f"`{name}` of block {self.block.index} was not recorded; "
                f"ask for it with `record=` and run a forward inside the `with` block"
            )
        return self._kept[name]


Side = Literal["input", "output", "call"]


class Site(NamedTuple):
    """A module and which side of it gives a record: its input, its output, or all it was called with."""

    name: str
    module: nn.Module
    side: Side


def find_sites(anatomy: Anatomy, block: Block, record: frozenset[str]) -> list[Site]:
    """Where to hook a block for the records asked for."""
    wanted = set(record)
    sites: list[Site] = []
    if wanted & {"scores", "map"}:
        sites.append(Site("call", block.attention, "call"))
        wanted |= {"q", "k"}
    if "attention_output" in wanted:
        if block.parallel:
            sites.append(Site("input", block.module, "input"))
            wanted |= {"mha"}
        elif block.family.pre_norm:
            sites.append(Site("attention_output", block.ffn_norm, "input"))
        else:
            sites.append(Site("attention_output", block.attention_norm, "output"))
    if "context" in wanted:
        sites.append(Site("context", block.output.module, "input"))
    if "output" in wanted:
        sites.append(Site("output", _last_module(anatomy, block), "output"))
    # A norm undoes whatever length the projection gives queries and keys, so that attention relates what comes out of
    # it. Positions come later on purpose: the angles have nothing to learn, and turn heads of another width otherwise.
    modules = {
        "q": _norm_of(block, "q") or block.query.module,
        "k": _norm_of(block, "k") or block.key.module,
        "v": block.value.module,
        "mha": block.output.module,
        "ffn": block.down.module,
    }
    sites.extend(Site(name, module, "output") for name, module in modules.items() if name in wanted)
    return sites


def _norm_of(block: Block, name: str) -> nn.Module | None:
    """The norm that follows a projection inside the attention, if the family has one there."""
    path = {"q": block.family.query_norm, "k": block.family.key_norm}.get(name)
    return None if path is None else block.part(path)


def _last_module(anatomy: Anatomy, block: Block) -> nn.Module:
    path = anatomy.family.first_block_output
    if block.index == 0 and path is not None:
        return find(anatomy.base, path) or block.module
    return block.module


def hidden_input(args: Any, kwargs: Any) -> Any:
    """The hidden states a module was called with."""
    return args[0] if args else kwargs["hidden_states"]


def call_arguments(block: Block, module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """All that a block's attention was called with, by name, and how much its cache held before."""
    bound = _signature(type(module).forward).bind_partial(module, *args, **kwargs).arguments
    call = {**bound, **bound.get("kwargs", {})}
    past = call.get("past_key_values", call.get("layer_past"))
    # The cache grows as the forward goes on, so its length is read before the block adds to it.
    call["past_length"] = 0 if past is None else past.get_seq_length(block.index)
    return call


@cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)
