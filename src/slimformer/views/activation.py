"""Activations rounded to a few bits, with a straight-through gradient."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from slimformer.errors import ViewError
from slimformer.views.straight_through import pass_inside, readable, remember

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
