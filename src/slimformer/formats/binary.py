"""Weights as one of two values, -a and +a: one bit each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.formats import gguf, layout
from slimformer.formats.number import NumberFormat, OnnxForm
from slimformer.formats.ternary import TERNARY

if TYPE_CHECKING:
    from torch import Tensor


def binary_levels(units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
    """-1 or 1 for each weight, and the mean magnitude.

    `a·sign(w)` with `a = mean|w|`, the closest two values there are (XNOR-Net, arXiv 1603.05279, eq. 6); 0 counts as
    positive.
    """
    scales = units.abs().sum(dim=-1, keepdim=True) / counts
    return units.ge(0).to(units.dtype).mul_(2).sub_(1), scales


BINARY = NumberFormat(
    "binary",
    codes=range(-1, 2, 2),
    levels=binary_levels,
    fast=layout.BINARY,
    # One bit has no room for a zero point in the middle; two bits hold -2 to 1.
    onnx=OnnxForm(2, TERNARY.fast),
    gguf=(gguf.Q1_0, gguf.TQ2_0, gguf.Q2_0, gguf.Q4_0, gguf.Q8_0),
)
