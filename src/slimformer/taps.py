"""Recording what a model computes, by hooks on its parts and only where asked.

Queries, keys and values come from hooks on their projections, so every attention implementation works
and `output_attentions` is never needed. Scores and maps are recomputed from them on demand. Hooks keep
references and return nothing: a tapped forward computes exactly what an untapped one does.
"""

from __future__ import annotations

import inspect
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from slimformer.anatomy import Anatomy, Block, find
from slimformer.anatomy.masks import additive_mask
from slimformer.anatomy.scores import attention_scores
from slimformer.errors import TapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from torch.utils.hooks import RemovableHandle

    from slimformer.anatomy import Part

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

    def _get(self, name: str) -> Any:
        if name not in self._kept:
            raise TapError(
                f"`{name}` of block {self.block.index} was not recorded; "
                f"ask for it with `record=` and run a forward inside the `with` block"
            )
        return self._kept[name]


class Taps:
    """Record parts of a model's computation while it runs inside a `with` block.

    Each forward starts with empty records. The hooks are removed when the block is left, also by an
    exception. Gradients flow through records of a forward that builds a graph.

    Args:
        model: A Transformers model of a known family, with or without a head.
        layers: Block numbers from 0 (negative ones count from the last), one number, or `"all"`.
        record: Names of `BlockRecord` to keep.
        embeddings: Whether to keep the input of the first block as well.

    Example:
        >>> with Taps(model, layers=-1, record=("q", "k", "v")) as taps:
        ...     model(**batch)
        ...     values = taps[-1].v
    """

    def __init__(
        self,
        model: nn.Module,
        layers: int | Iterable[int] | Literal["all"] = "all",
        record: Iterable[Name] = ("q", "k", "v"),
        *,
        embeddings: bool = False,
    ) -> None:
        self.anatomy = Anatomy.of(model)
        self.model = model
        self.layers = _layers(layers, len(self.anatomy.blocks))
        self.record = _names(record)
        self.embeddings_wanted = embeddings
        self._records: dict[int, BlockRecord] = {}
        self._embeddings: Tensor | None = None
        self._handles: list[RemovableHandle] = []
        self._awaited: set[tuple[int, str]] = set()
        self._running = False
        self._stop_when_complete = False

    def __getitem__(self, layer: int) -> BlockRecord:
        (number,) = _layers(layer, len(self.anatomy.blocks))
        if number not in self._records:
            raise TapError(f"block {number} has no records; tapped are {list(self.layers)}, after a forward")
        return self._records[number]

    @property
    def embeddings(self) -> Tensor:
        """Input of the first block: [batch, length, hidden]."""
        if self._embeddings is None:
            raise TapError("the embeddings were not recorded; ask for them with `embeddings=True` and run a forward")
        return self._embeddings

    def __enter__(self) -> Taps:
        _refuse_compiled(self.model)
        if "ffn" in self.record and getattr(self.anatomy.config, "chunk_size_feed_forward", False):
            raise TapError("`ffn` cannot be recorded with `chunk_size_feed_forward` > 0; set it to 0 in the config")
        try:
            self._attach()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def run(self, **inputs: Any) -> Taps:
        """Run the base model only until everything asked for is recorded; later parts cost nothing."""
        self._stop_when_complete = True
        try:
            self.anatomy.base(**inputs)
        except _Complete:
            pass
        finally:
            self._stop_when_complete = False
            self._running = False
        return self

    def _attach(self) -> None:
        base = self.anatomy.base
        self._handles.append(base.register_forward_pre_hook(self._start, with_kwargs=True))
        self._handles.append(base.register_forward_hook(self._finish))
        if self.embeddings_wanted:
            first = self.anatomy.blocks[0].module
            self._handles.append(first.register_forward_pre_hook(self._keep_embeddings, with_kwargs=True))
        for layer in self.layers:
            for name, module, kind in _sites(self.anatomy, self.anatomy.blocks[layer], self.record):
                keep = partial(_KEEPERS[kind], self, layer, name)
                register: Callable[..., RemovableHandle] = (
                    module.register_forward_hook if kind == "output" else module.register_forward_pre_hook
                )
                self._handles.append(register(keep, with_kwargs=True))

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _start(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._records = {layer: BlockRecord(self.anatomy.blocks[layer]) for layer in self.layers}
        self._embeddings = None
        self._awaited = {
            (layer, name)
            for layer in self.layers
            for name, _, _ in _sites(self.anatomy, self.anatomy.blocks[layer], self.record)
        }
        if self.embeddings_wanted:
            self._awaited.add((-1, "embeddings"))
        self._running = True

    def _finish(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running = False
        if self._awaited:
            layer, name = min(self._awaited)
            raise TapError(
                f"the forward ended without reaching `{name}` of block {layer}; "
                "a part of the model is compiled or skipped: tap the plain model in eval mode"
            )

    def _keep(self, layer: int, name: str, value: Any) -> None:
        # Outside the base model's forward hooks also fire when activations are recomputed for the backward
        # pass; inside it, DeBERTa runs its positions through the query projection after the tokens.
        if not self._running or (layer, name) not in self._awaited:
            return
        self._records[layer]._kept[name] = value
        self._recorded(layer, name)

    def _keep_embeddings(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._running and (-1, "embeddings") in self._awaited:
            self._embeddings = _first(args, kwargs)
            self._recorded(-1, "embeddings")

    def _recorded(self, layer: int, name: str) -> None:
        self._awaited.discard((layer, name))
        if self._stop_when_complete and not self._awaited:
            raise _Complete


def run_until(
    model: nn.Module, layer: int, inputs: Mapping[str, Any], record: Iterable[Name] = ("output",)
) -> BlockRecord:
    """Run a model only as far as `record` of block `layer` needs, and return that block's record.

    Example:
        >>> run_until(teacher, 3, batch, record=("q", "k", "v")).q.shape
    """
    with Taps(model, layer, record) as taps:
        return taps.run(**inputs)[layer]


class _Complete(BaseException):
    """Ends a forward that has nothing left to record; not an error, so nothing may catch it by accident."""


def _sites(
    anatomy: Anatomy, block: Block, record: frozenset[str]
) -> list[tuple[str, nn.Module, Literal["input", "output", "call"]]]:
    """Where to hook for what: (name, module, which side of it)."""
    wanted = set(record)
    sites: list[tuple[str, nn.Module, Literal["input", "output", "call"]]] = []
    if wanted & {"scores", "map"}:
        sites.append(("call", block.attention, "call"))
        wanted |= {"q", "k"}
    if "attention_output" in wanted:
        if block.parallel:
            sites.append(("input", block.module, "input"))
            wanted |= {"mha"}
        else:
            side: Literal["input", "output"] = "input" if block.family.pre_norm else "output"
            norm = block.ffn_norm if block.family.pre_norm else block.attention_norm
            sites.append(("attention_output", norm, side))
    if "context" in wanted:
        sites.append(("context", block.output.module, "input"))
    if "output" in wanted:
        sites.append(("output", _last_module(anatomy, block), "output"))
    modules = {
        "q": block.query.module,
        "k": block.key.module,
        "v": block.value.module,
        "mha": block.output.module,
        "ffn": block.down.module,
    }
    sites.extend((name, module, "output") for name, module in modules.items() if name in wanted)
    return sites


def _last_module(anatomy: Anatomy, block: Block) -> nn.Module:
    path = anatomy.family.first_block_output
    if block.index == 0 and path is not None:
        return find(anatomy.base, path) or block.module
    return block.module


def _keep_input(taps: Taps, layer: int, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    taps._keep(layer, name, _first(args, kwargs))


def _keep_output(taps: Taps, layer: int, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    taps._keep(layer, name, output[0] if isinstance(output, tuple) else output)


def _keep_call(taps: Taps, layer: int, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    bound = _signature(type(module).forward).bind_partial(module, *args, **kwargs).arguments
    call = {**bound, **bound.get("kwargs", {})}
    past = call.get("past_key_values", call.get("layer_past"))
    # The cache grows as the forward goes on, so its length is read before the block adds to it.
    call["past_length"] = 0 if past is None else past.get_seq_length(taps.anatomy.blocks[layer].index)
    taps._keep(layer, name, call)


_KEEPERS: dict[str, Callable[..., None]] = {"input": _keep_input, "output": _keep_output, "call": _keep_call}


@cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


def _first(args: Any, kwargs: Any) -> Any:
    return args[0] if args else kwargs["hidden_states"]


def _layers(layers: int | Iterable[int] | Literal["all"], count: int) -> tuple[int, ...]:
    if layers == "all":
        return tuple(range(count))
    numbers = [layers] if isinstance(layers, int) else list(layers)
    for number in numbers:
        if not -count <= number < count:
            raise TapError(f"there is no block {number}; the model has {count}, numbered 0 to {count - 1}")
    return tuple(sorted({number % count for number in numbers}))


def _names(record: Iterable[Name]) -> frozenset[str]:
    names = frozenset([record] if isinstance(record, str) else record)
    unknown = sorted(names - set(get_args(Name)))
    if unknown:
        raise TapError(f"`{unknown[0]}` cannot be recorded; choose from {', '.join(get_args(Name))}")
    return names


def _refuse_compiled(model: nn.Module) -> None:
    compiled = isinstance(model, torch._dynamo.OptimizedModule) or any(
        getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()
    )
    if compiled or torch.compiler.is_compiling():
        raise TapError(
            "taps cannot see inside `torch.compile`, which leaves hooks out of its graphs; "
            "tap the plain model (`model._orig_mod`) and compile only what runs untapped"
        )
