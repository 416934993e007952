"""Weights as evenly spaced levels of 2, 4 or 8 bits, with a straight-through gradient."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from slimformer.errors import ViewError
from slimformer.views.quantized import Levels, Per, QuantizedView, Sharing, through

if TYPE_CHECKING:
    from torch import Tensor

Bits = Literal[2, 4, 8]
#: Step of four even levels, without zero, that is closest to a normal distribution, as a multiple of mean|w|.
STEP_OF_FOUR = 0.9957 * math.sqrt(math.pi / 2)


def round_weight(
    weight: Tensor, bits: Bits, per: Per = "row", clip: float | None = 2.5, group_size: int | None = None
) -> Tensor:
    """Round a weight to evenly spaced levels.

    With 4 and 8 bits: codes `round(w/s)` from -(2^(bits-1) - 1) to 2^(bits-1) - 1 and `s = max|w| / (2^(bits-1) - 1)`.
    With 2 bits: the four codes -3, -1, 1, 3, cut by a step that suits a normal distribution, and the scale that is
    then closest in squares.

    Args:
        weight: [out, in].
        bits: 2, 4 or 8.
        per: What shares a scale.
        clip: Bound on `|w|`; the gradient is zero where `|w| ≥ clip` and passes unchanged elsewhere.
        group_size: Weights of a group, with `per="group"`.
    """
    return through(weight, _levels_for(bits), Sharing(per, group_size), clip)


class IntegerView(QuantizedView):
    """Shows a weight rounded to 2, 4 or 8 bits; training goes on in the float weight behind it.

    Args:
        bits: 2, 4 or 8.
        per: One scale per "matrix", per "row" or per "group" of a row.
        clip: Bound on `|w|`, beyond which no gradient passes.
        group_size: Weights of a group.
    """

    kind = "integer"

    def __init__(self, bits: Bits, per: Per = "row", clip: float | None = 2.5, group_size: int | None = None) -> None:
        super().__init__(per, clip, group_size)
        _levels_for(bits)
        self.bits = bits

    def spec(self) -> dict[str, Any]:
        """Settings of this view."""
        return {**super().spec(), "bits": self.bits}

    def extra_repr(self) -> str:
        """Show the settings in the model's print-out."""
        return f"bits={self.bits}, {super().extra_repr()}"

    def levels(self, units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
        """A whole number for each weight, and the step between two."""
        return _levels_for(self.bits)(units, counts)


def _levels_for(bits: int) -> Levels:
    if bits not in get_args(Bits):
        raise ViewError(f"`bits` is {bits}; weights are rounded to 2, 4 or 8 bits")
    return _four_levels if bits == 2 else partial(_even_levels, 2 ** (bits - 1) - 1)


def _even_levels(top: int, units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
    largest = torch.maximum(units.amax(dim=-1, keepdim=True), -units.amin(dim=-1, keepdim=True))
    scales = largest / top
    return (units / scales.where(scales > 0, 1)).round_().clamp_(-top, top), scales


def _four_levels(units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
    codes = units.abs()
    step = STEP_OF_FOUR * codes.sum(dim=-1, keepdim=True) / counts
    outer = codes.gt_(step)
    # Codes of a short group's filling are 1; they have no say in the scale.
    squares = counts + 8 * outer.sum(dim=-1, keepdim=True)
    codes = outer.mul_(2).add_(1).copysign_(units)
    return codes, torch.einsum("...k,...k->...", codes, units)[..., None] / squares
