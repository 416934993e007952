"""Weights as one of three values, -a, 0 and +a: two bits each, or 1.6 in the smaller layout."""

from __future__ import annotations

import torch
from torch import Tensor

from slimformer.formats import gguf
from slimformer.formats.layout import TERNARY as FAST
from slimformer.formats.layout import TERNARY_SMALL as SMALL
from slimformer.formats.number import NumberFormat, OnnxForm


def ternary_levels(units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
    """-1, 0 or 1 for each weight, and the mean magnitude of those that are not 0.

    `Δ = 0.7·mean|w|`, `a = mean(|w| : |w| > Δ)`, and the result is `a·sign(w)·[|w| > Δ]`: the quantizer of Ternary
    Weight Networks (arXiv 1605.04711, eq. 5 and 6) as TernaryBERT (arXiv 2009.12812) uses it. Units of zeros stay
    zeros.
    """
    codes = units.abs()
    limit = 0.7 * codes.sum(dim=-1, keepdim=True) / counts
    chosen = codes.gt_(limit)
    count = chosen.sum(dim=-1, keepdim=True).clamp(min=1)
    # Adding 0 turns the -0 of a small negative weight into 0.
    codes = chosen.copysign_(units).add_(0)
    return codes, torch.einsum("...k,...k->...", codes, units)[..., None] / count


TERNARY = NumberFormat(
    "ternary",
    codes=range(-1, 2),
    levels=ternary_levels,
    fast=FAST,
    small=SMALL,
    onnx=OnnxForm(2, FAST),
    gguf=(gguf.TQ2_0, gguf.Q2_0, gguf.Q4_0, gguf.Q8_0),
)
