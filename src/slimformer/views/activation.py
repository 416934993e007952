"""Activations rounded to a few bits, with a straight-through gradient."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from slimformer.errors import ViewError
from slimformer.views.straight_through import pass_inside

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
    """
    if not 2 <= bits <= 16:
        raise ViewError(f"`bits` is {bits}; activations are rounded to 2 to 16 bits")
    if per not in get_args(Per):
        raise ViewError(f"`per` is `{per}`; an activation scale is shared per `tensor`, `token` or `head`")
    rounded: Tensor = _Round.apply(x, bits, per, clip, symmetric)  # type: ignore[no-untyped-call]
    return rounded


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int, per: Per, clip: float | None, symmetric: bool) -> Tensor:
        ctx.clip = clip
        if clip is not None:
            ctx.save_for_backward(x)
        clipped = x if clip is None else x.clamp(-clip, clip)
        wide = clipped.to(torch.promote_types(x.dtype, torch.float32))
        over = {"tensor": tuple(range(x.dim())), "token": (-1,), "head": (-2, -1)}[per]
        return (_symmetric if symmetric else _asymmetric)(wide, bits, over).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return pass_inside(ctx, gradient), None, None, None, None


def _symmetric(x: Tensor, bits: int, over: tuple[int, ...]) -> Tensor:
    largest = x.abs().amax(dim=over, keepdim=True)
    steps: Tensor = (2 ** (bits - 1) - 1) / largest.where(largest > 0, 1)
    return (x * steps).round() / steps


def _asymmetric(x: Tensor, bits: int, over: tuple[int, ...]) -> Tensor:
    low = x.amin(dim=over, keepdim=True)
    span = x.amax(dim=over, keepdim=True) - low
    levels = 2**bits - 1
    unit: Tensor = (x - low) / span.where(span > 0, 1)
    rounded: Tensor = (unit * levels).round() / levels
    return rounded * span + low
