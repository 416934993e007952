"""Weights as one of three values, -a, 0 and +a, with a straight-through gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from slimformer.views.quantized import Per, QuantizedView, Sharing, codes_and_scales, through

if TYPE_CHECKING:
    from torch import Tensor


def ternarize(weight: Tensor, per: Per = "matrix", clip: float | None = 2.5, group_size: int | None = None) -> Tensor:
    """Ternarize a weight, with one scale for the matrix, for each row, or for each group of a row.

    With w clipped to ±clip: `Δ = 0.7·mean|w|`, `a = mean(|w| : |w| > Δ)`, and the result is
    `a·sign(w)·[|w| > Δ]`, the quantizer of Ternary Weight Networks as TernaryBERT uses it. Rows of zeros
    stay zeros.

    Args:
        weight: [out, in].
        per: What shares a scale.
        clip: Bound on `|w|`; the gradient is zero where `|w| ≥ clip` and passes unchanged elsewhere.
            None for no bound.
        group_size: Weights of a group, with `per="group"`.
    """
    return through(weight, _levels, Sharing(per, group_size), clip)


def ternary_codes(
    weight: Tensor, per: Per = "matrix", clip: float | None = 2.5, group_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The two factors of `ternarize`: codes in {-1, 0, 1} as int8, and one scale for all that share it."""
    return codes_and_scales(weight, _levels, Sharing(per, group_size), clip)


class TernaryView(QuantizedView):
    """Shows a weight ternarized; training goes on in the float weight behind it.

    Args:
        per: One scale per "matrix" (blocks and pooler in the paper), per "row" (word embedding: per token) or per
            "group" of a row.
        clip: Bound on `|w|`, beyond which no gradient passes.
        group_size: Weights of a group.
    """

    kind = "ternary"

    def levels(self, units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
        """-1, 0 or 1 for each weight, and the mean magnitude of those that are not 0."""
        return _levels(units, counts)


def _levels(units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
    codes = units.abs()
    limit = 0.7 * codes.sum(dim=-1, keepdim=True) / counts
    chosen = codes.gt_(limit)
    count = chosen.sum(dim=-1, keepdim=True).clamp(min=1)
    # Adding 0 turns the -0 of a small negative weight into 0.
    codes = chosen.copysign_(units).add_(0)
    return codes, torch.einsum("...k,...k->...", codes, units)[..., None] / count
