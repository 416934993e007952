"""Weights as one of two values, -a and +a, with a straight-through gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.views.quantized import Per, QuantizedView, Sharing, through

if TYPE_CHECKING:
    from torch import Tensor


def sign_weight(weight: Tensor, per: Per = "matrix", clip: float | None = 2.5, group_size: int | None = None) -> Tensor:
    """Binarize a weight: `a·sign(w)` with `a = mean|w|`, the closest two values there are; 0 counts as positive.

    Args:
        weight: [out, in].
        per: What shares a scale.
        clip: Bound on `|w|`; the gradient is zero where `|w| ≥ clip` and passes unchanged elsewhere.
        group_size: Weights of a group, with `per="group"`.
    """
    return through(weight, _levels, Sharing(per, group_size), clip)


class BinaryView(QuantizedView):
    """Shows a weight as its signs times their mean magnitude; training goes on in the float weight behind it.

    Args:
        per: One scale per "matrix", per "row" or per "group" of a row.
        clip: Bound on `|w|`, beyond which no gradient passes.
        group_size: Weights of a group.
    """

    kind = "binary"

    def levels(self, units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
        """-1 or 1 for each weight, and the mean magnitude."""
        return _levels(units, counts)


def _levels(units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
    scales = units.abs().sum(dim=-1, keepdim=True) / counts
    return units.ge(0).to(units.dtype).mul_(2).sub_(1), scales
