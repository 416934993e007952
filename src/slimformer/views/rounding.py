"""Activations rounded to a few bits: one of them, and all of a model where a quantized matrix meets one.

Rounded are the inputs of the blocks' matrices and of the pooler, queries and keys before their product, and
probabilities and values before theirs. Norms, softmax, activation functions, biases, embeddings of positions and
types, and the task head stay as they are. The hooks hold settings only: a rounded model can be copied and saved.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from slimformer.anatomy import Anatomy
from slimformer.anatomy.tied import tied_head
from slimformer.errors import ViewError
from slimformer.views.attention import goes_through_registry, set_operand_rounding, use_attention
from slimformer.views.view import pass_inside, readable, remember

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slimformer.anatomy import Block

Per = Literal["tensor", "token", "head"]


def quantize_activation(
    x: Tensor, bits: int = 8, per: Per = "tensor", clip: float | None = 2.5, symmetric: bool = True
) -> Tensor:
    """Round an activation to `bits` bits and back, by the largest value it holds.

    Symmetric: with x clipped to ±clip and `s = (2^(bits-1) - 1) / max|x|`, the result is `round(x·s)/s`,
    ties to even. Asymmetric: 2^bits levels between the smallest and the largest value. Zeros stay zeros.

    Args:
        x: Any shape; the last axis holds the features of one token.
        bits: 2 to 16.
        per: What shares a scale: the whole "tensor" (one example's result then depends on its batch-mates
            and padding), each "token" (last axis) or each "head" (last two axes).
        clip: Bound on `|x|`; the gradient is zero where `|x| ≥ clip` and passes unchanged elsewhere.
            None for no bound.
        symmetric: Whether zero is a level and the range is symmetric around it.

    Raises:
        ViewError: On the CPU, where `x` holds NaN, or infinity without a clip.
    """
    return Rounding(bits, per, clip, symmetric)(x)


@dataclass(frozen=True)
class Rounding:
    """How activations are rounded; call it with one. The arguments are those of `quantize_activation`.

    By default each token has its own scale, so that one example's answer depends neither on its batch-mates nor on
    padding, and nothing is clipped.
    """

    bits: int = 8
    per: Per = "token"
    clip: float | None = None
    symmetric: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise ViewError(f"`bits` is {self.bits}; activations are rounded to 2 to 16 bits")
        if self.per not in get_args(Per):
            raise ViewError(f"`per` is `{self.per}`; an activation scale is shared per `tensor`, `token` or `head`")
        if self.clip is not None and self.clip <= 0:
            raise ViewError(f"`clip` is {self.clip}; give a bound above 0, or none")

    def __call__(self, x: Tensor) -> Tensor:
        """Round an activation."""
        rounded: Tensor = _Round.apply(x, self)  # type: ignore[no-untyped-call]
        return rounded

    def spec(self) -> dict[str, Any]:
        """These settings as JSON types; `Rounding(**spec)` is the same again."""
        return asdict(self)


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounding: Rounding) -> Tensor:
        clip = remember(ctx, x, rounding.clip)
        clipped = x if clip is None else x.clamp(-clip, clip)
        wide = clipped.to(torch.promote_types(x.dtype, torch.float32))
        over = {"tensor": tuple(range(x.dim())), "token": (-1,), "head": (-2, -1)}[rounding.per]
        return (_symmetric if rounding.symmetric else _asymmetric)(wide, rounding.bits, over).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return pass_inside(ctx, gradient), None


def _symmetric(x: Tensor, bits: int, over: tuple[int, ...]) -> Tensor:
    # Two reductions read `x` as it is; |x| would have to be written first.
    largest = _finite(torch.maximum(x.amax(dim=over, keepdim=True), -x.amin(dim=over, keepdim=True)))
    steps: Tensor = (2 ** (bits - 1) - 1) / largest.where(largest > 0, 1)
    return (x * steps).round_().div_(steps)


def _asymmetric(x: Tensor, bits: int, over: tuple[int, ...]) -> Tensor:
    low = x.amin(dim=over, keepdim=True)
    span = _finite(x.amax(dim=over, keepdim=True) - low)
    levels = 2**bits - 1
    unit: Tensor = (x - low) / span.where(span > 0, 1)
    rounded: Tensor = (unit * levels).round_().div_(levels)
    return rounded * span + low


def _finite(reach: Tensor) -> Tensor:
    if readable(reach) and not bool(torch.isfinite(reach).all()):
        raise ViewError(
            "an activation that is to be rounded holds NaN or infinity; check the inputs, or lower `--lr` if the "
            "model has diverged"
        )
    return reach


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
        for group in block.readers:
            _round_input([matrix.module for matrix in group], rounding)
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
        if isinstance(module, RoundsInput):
            module.input_rounding = None
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


@contextmanager
def in_floats(model: nn.Module) -> Iterator[nn.Module]:
    """A model that computes with floats only inside the `with` block, as it does where there are no operators.

    What is recorded of a model, and compared elsewhere, is asked so: a value that lies near the middle of two steps may
    become another one where a sum of floats comes in another order.
    """
    before = {module: module.by_operator for module in model.modules() if isinstance(module, RoundsInput)}
    for module in before:
        module.by_operator = False
    try:
        yield model
    finally:
        for module, by_operator in before.items():
            module.by_operator = by_operator


class RoundsInput(nn.Module):
    """A module that rounds its input itself, where it is told how, and may multiply by an operator."""

    input_rounding: Rounding | None = None
    by_operator: bool = True


def _round_input(modules: Sequence[nn.Module], rounding: Rounding) -> None:
    others = [module for module in modules if not isinstance(module, RoundsInput)]
    for module in modules:
        if isinstance(module, RoundsInput):
            module.input_rounding = rounding
    hook = _RoundInput(rounding, len(others))
    for module in others:
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
