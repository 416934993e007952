"""Hooks on a model, for as long as a `with` block lasts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from slimformer.anatomy import Anatomy
from slimformer.errors import TapError
from slimformer.taps.record import BlockRecord, Name, call_arguments, find_sites, hidden_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

    from slimformer.taps.record import Side


class Taps:
    """Record parts of a model's computation while it runs inside a `with` block.

    Each forward starts with empty records. The hooks are removed when the block is left, also by an
    exception. Gradients flow through records of a forward that builds a graph.

    Args:
        model: A Transformers model of a known family, with or without a head.
        layers: Block numbers from 0 (negative ones count from the last), one number, or `"all"`; or for each number
            the names to keep of that block.
        record: Names of `BlockRecord` to keep, where `layers` does not say.
        embeddings: Whether to keep the input of the first block as well.

    Example:
        >>> with Taps(model, layers=-1, record=("q", "k", "v")) as taps:
        ...     model(**batch)
        ...     values = taps[-1].v
    """

    def __init__(
        self,
        model: nn.Module,
        layers: int | Iterable[int] | Mapping[int, Iterable[Name]] | Literal["all"] = "all",
        record: Iterable[Name] = ("q", "k", "v"),
        *,
        embeddings: bool = False,
    ) -> None:
        self.anatomy = Anatomy.of(model)
        reason = self.anatomy.family.taps_pinned_by
        if reason is not None:
            raise TapError(
                f"nothing can be recorded of `{self.anatomy.family.name}`: {reason}; use what needs its outputs alone"
            )
        self.model = model
        self.layers = _layers(layers, len(self.anatomy.blocks))
        of_each = layers if isinstance(layers, Mapping) else dict.fromkeys(self.layers, record)
        self.names = {layer % len(self.anatomy.blocks): _names(names) for layer, names in of_each.items()}
        self.record: frozenset[str] = frozenset().union(*self.names.values())
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
            for name, module, side in find_sites(self.anatomy, self.anatomy.blocks[layer], self.names[layer]):
                keep = partial(self._keepers[side], layer, name)
                register: Callable[..., RemovableHandle] = (
                    module.register_forward_hook if side == "output" else module.register_forward_pre_hook
                )
                self._handles.append(register(keep, with_kwargs=True))

    @property
    def _keepers(self) -> dict[Side, Callable[..., None]]:
        return {"input": self._keep_input, "output": self._keep_output, "call": self._keep_call}

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _start(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._records = {layer: BlockRecord(self.anatomy.blocks[layer]) for layer in self.layers}
        self._embeddings = None
        self._awaited = {
            (layer, name)
            for layer in self.layers
            for name, _, _ in find_sites(self.anatomy, self.anatomy.blocks[layer], self.names[layer])
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
        self._records[layer].keep(name, value)
        self._recorded(layer, name)

    def _keep_input(self, layer: int, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._keep(layer, name, hidden_input(args, kwargs))

    def _keep_output(self, layer: int, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._keep(layer, name, output[0] if isinstance(output, tuple) else output)

    def _keep_call(self, layer: int, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._keep(layer, name, call_arguments(self.anatomy.blocks[layer], module, args, kwargs))

    def _keep_embeddings(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._running and (-1, "embeddings") in self._awaited:
            self._embeddings = hidden_input(args, kwargs)
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
