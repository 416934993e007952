"""Rounded activations on a whole model, at every place where a quantized matrix meets one.

Rounded are the inputs of the blocks' matrices and of the pooler, queries and keys before their product, and
probabilities and values before theirs. Norms, softmax, activation functions, biases, embeddings of positions and
types, and the task head stay as they are. The hooks hold settings only: a rounded model can be copied and saved.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from slimformer.anatomy import Anatomy
from slimformer.errors import ViewError
from slimformer.views.attention import goes_through_registry, set_operand_rounding, use_attention

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slimformer.anatomy import Block
    from slimformer.views.activation import Rounding

_STATE = "_slimformer_rounded"


@dataclass(frozen=True)
class _State:
    rounding: Rounding
    attention_before: str | None


def round_activations(model: nn.Module, rounding: Rounding) -> nn.Module:
    """Round what a model computes on its way, from now on, in training and in evaluation.

    Args:
        model: A Transformers model of a known family; weights may carry views or not.
        rounding: How.
    """
    if rounding_of(model) is not None:
        raise ViewError("activations of this model are rounded already; call `unround_activations` first")
    anatomy = Anatomy.of(model)
    before = use_attention(model)
    for block in anatomy.blocks:
        for group in _readers(block):
            _round_input(group, rounding)
        _round_operands(block, rounding)
    if anatomy.pooler is not None:
        _round_input([anatomy.pooler.module], rounding)
    head = tied_head(anatomy)
    if head is not None:
        _round_input([head], rounding)
    anatomy.base.__dict__[_STATE] = _State(rounding, before)
    return model


def rounding_of(model: nn.Module) -> Rounding | None:
    """How a model's activations are rounded; None where they are not."""
    state: _State | None = Anatomy.of(model).base.__dict__.get(_STATE)
    return None if state is None else state.rounding


def unround_activations(model: nn.Module) -> nn.Module:
    """Leave a model's activations alone again."""
    anatomy = Anatomy.of(model)
    state: _State | None = anatomy.base.__dict__.pop(_STATE, None)
    if state is None:
        return model
    if state.attention_before is not None:
        use_attention(model, state.attention_before)
    for block in anatomy.blocks:
        set_operand_rounding(block, None)
    for module in anatomy.model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, _Hook)]:
                del hooks[key]
    return model


@contextmanager
def unrounded(model: nn.Module) -> Iterator[nn.Module]:
    """A model with its activations left alone, inside the `with` block."""
    rounding = rounding_of(model)
    unround_activations(model)
    try:
        yield model
    finally:
        if rounding is not None:
            round_activations(model, rounding)


def tied_head(anatomy: Anatomy) -> nn.Module | None:
    """The output layer of a language model whose weight is the word embedding's, or None."""
    output = getattr(anatomy.model, "get_output_embeddings", lambda: None)()
    table = anatomy.word_embedding
    if output is None or table is None or output is table.module:
        return None
    return output if _stored(output) is _stored(table.module) else None


def _stored(module: nn.Module) -> Any:
    """The parameter behind a module's weight, below any views."""
    views = getattr(module, "parametrizations", None)
    return views["weight"].original if views is not None and "weight" in views else module.weight


def _readers(block: Block) -> list[list[nn.Module]]:
    """The modules of a block's matrices, grouped by the input they read."""
    groups = (("query", "key", "value"), ("output",), ("up", "gate"), ("down",))
    found = []
    for roles in groups:
        modules = [block.matrices[role].module for role in roles if role in block.matrices]
        found.append(list({id(module): module for module in modules}.values()))
    return found


def _round_input(modules: Sequence[nn.Module], rounding: Rounding) -> None:
    hook = _RoundInput(rounding, len(modules))
    for module in modules:
        module.register_forward_pre_hook(hook)


def _round_operands(block: Block, rounding: Rounding) -> None:
    if goes_through_registry(block):
        set_operand_rounding(block, rounding)
        return
    dropout = getattr(block.attention, "dropout", None)
    if not isinstance(dropout, nn.Module):
        raise ViewError(
            f"attention of `{block.family.name}` is of its own making and has no dropout to round probabilities at; "
            "leave activations in float"
        )
    for matrix in (block.query, block.key, block.value):
        matrix.module.register_forward_hook(_RoundHeads(rounding, block.head_width))
    dropout.register_forward_hook(_RoundOutput(rounding))


class _Hook:
    """A hook of this module, to be found and taken off again."""

    def __init__(self, rounding: Rounding) -> None:
        self.rounding = rounding


class _RoundInput(_Hook):
    """Rounds the input of modules that read the same one, once for all of them."""

    def __init__(self, rounding: Rounding, readers: int) -> None:
        super().__init__(rounding)
        self.readers = readers
        self.last: tuple[Tensor, Tensor, int] | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x, rest = args[0], args[1:]
        last = self.last
        if last is not None and last[0] is x:
            rounded, left = last[1], last[2] - 1
        else:
            rounded, left = self.rounding(x), self.readers - 1
        # Nothing is held on to once the last reader has had it.
        self.last = (x, rounded, left) if left > 0 else None
        return (rounded, *rest)

    def __deepcopy__(self, memo: dict[int, Any]) -> _RoundInput:
        # Readers of the same input share one hook in the copy too.
        copied = memo.setdefault(id(self), _RoundInput(self.rounding, self.readers))
        assert isinstance(copied, _RoundInput)
        return copied


class _RoundOutput(_Hook):
    """Rounds the output of a module."""

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return self.rounding(output)


class _RoundHeads(_Hook):
    """Rounds the output of a projection, head by head as attention will see it."""

    def __init__(self, rounding: Rounding, width: int) -> None:
        super().__init__(rounding)
        self.width = width

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        heads = output.unflatten(-1, (-1, self.width)).transpose(-3, -2)
        rounded: Tensor = self.rounding(heads).transpose(-3, -2).flatten(-2)
        return rounded
