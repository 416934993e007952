"""Weights as evenly spaced levels of 2, 3, 4 or 8 bits.

With 4 and 8 bits the largest weight of a unit is the outermost level. With 2 and 3 bits that would waste most of the
few levels there are on rare weights: there the levels are the odd numbers, cut by the step that is closest to a normal
distribution, and the scale is then the closest in squares. On the matrices of MiniLM, with a scale per row, that leaves
0.049 of the weights' squares as error in 3 bits, where seven levels up to the largest weight leave 0.128.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from slimformer.formats import gguf, layout
from slimformer.formats.number import NumberFormat, OnnxForm

#: Steps of 4 and of 8 even levels that are closest to a normal distribution, in standard deviations (J. Max,
#: Quantizing for minimum distortion, IRE Transactions on Information Theory 6, 1960, table II).
STEP_OF_FOUR, STEP_OF_EIGHT = 0.9957, 0.5860


def even_levels(top: int, units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
    """Codes `round(w/s)` from -top to top, and `s = max|w| / top`."""
    largest = torch.maximum(units.amax(dim=-1, keepdim=True), -units.amin(dim=-1, keepdim=True))
    scales = largest / top
    return (units / scales.where(scales > 0, 1)).round_().clamp_(-top, top), scales


def odd_levels(top: int, step: float, units: Tensor, counts: int | Tensor) -> tuple[Tensor, Tensor]:
    """Codes -top, …, -3, -1, 1, 3, …, top, and the scale that is closest to the weights in squares.

    Args:
        top: The largest code.
        step: Distance of two levels, in standard deviations of a normal distribution.
        units: Weights, those that share a scale along the last axis.
        counts: How many of each unit are real.
    """
    sizes = units.abs()
    # The standard deviation of a normal distribution is √(π/2) of its mean magnitude.
    limit = step * math.sqrt(math.pi / 2) * sizes.sum(dim=-1, keepdim=True) / counts
    beyond = sizes.gt(limit).to(units.dtype)
    for place in range(2, (top + 1) // 2):
        beyond.add_(sizes.gt(place * limit))
    # (2k + 1)² = 1 + 4(k² + k). A short group's filling has k = 0, and no say in the scale.
    squares = counts + 4 * (beyond * beyond + beyond).sum(dim=-1, keepdim=True)
    codes = beyond.mul_(2).add_(1).copysign_(units)
    return codes, torch.einsum("...k,...k->...", codes, units)[..., None] / squares


# Odd codes of two and three bits have no zero point in `MatMulNBits`, and take four there.
INT2 = NumberFormat(
    "int2",
    codes=range(-3, 4, 2),
    levels=partial(odd_levels, 3, STEP_OF_FOUR),
    fast=layout.INT2,
    onnx=OnnxForm(4, layout.INT4),
    gguf=(gguf.Q4_0, gguf.Q8_0),
)
INT3 = NumberFormat(
    "int3",
    codes=range(-7, 8, 2),
    levels=partial(odd_levels, 7, STEP_OF_EIGHT),
    fast=layout.INT3,
    onnx=OnnxForm(4, layout.INT4),
    gguf=(gguf.Q4_0, gguf.Q8_0),
)
INT4 = NumberFormat(
    "int4",
    codes=range(-7, 8),
    levels=partial(even_levels, 7),
    fast=layout.INT4,
    onnx=OnnxForm(4, layout.INT4),
    gguf=(gguf.Q4_0, gguf.Q8_0),
)
INT8 = NumberFormat(
    "int8",
    codes=range(-127, 128),
    levels=partial(even_levels, 127),
    fast=layout.INT8,
    onnx=OnnxForm(8, layout.INT8),
    gguf=(gguf.Q8_0,),
)
