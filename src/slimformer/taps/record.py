"""What one block computed, by name."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from slimformer.anatomy.masks import additive_mask
from slimformer.anatomy.scores import attention_scores
from slimformer.errors import TapError

if TYPE_CHECKING:
    from torch import Tensor

    from slimformer.anatomy import Block, Part

Name = Literal["q", "k", "v", "scores", "map", "context", "mha", "attention_output", "ffn", "output"]
_ROLES = {"q": "query", "k": "key", "v": "value"}


class BlockRecord:
    """What one block computed in one forward. A name that was not asked for raises `TapError`.

    Shapes are [batch, length, hidden] unless said otherwise.

    Attributes:
        q: Output of the query projection, heads side by side: [batch, length, heads x width].
        k: Output of the key projection, likewise.
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
