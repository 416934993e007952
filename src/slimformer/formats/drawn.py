"""Random weights that every machine draws alike, so that a file need only say how they were drawn.

The generators of torch give the same numbers on one machine; across its versions and instruction sets the last bits
may differ, and a mask of such weights could not be stored as bits alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor


def draw(shape: Sequence[int], seed: int, deviation: float) -> Tensor:
    """The same as `draw_array`, as a tensor of torch."""
    import torch

    return torch.from_numpy(draw_array(shape, seed, deviation))


def draw_array(shape: Sequence[int], seed: int, deviation: float) -> NDArray[np.float32]:
    """Float32 weights of a standard deviation, uniform around 0, by integer arithmetic.

    SplitMix64 (Steele, Lea and Flood, 2014) of seed and place; its upper 24 bits are all a float32 holds.
    """
    golden, first, second = (np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    with np.errstate(over="ignore"):
        states = (np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(seed % 2**32 << 32)) * golden
        states = (states ^ (states >> np.uint64(30))) * first
        states = (states ^ (states >> np.uint64(27))) * second
        states ^= states >> np.uint64(31)
    # Odd multiples of 2⁻²⁴ within (-1, 1), exact in float32.
    uniform = ((states >> np.uint64(40)).astype(np.int64) * 2 + 1 - 2**24) / 2**24
    return uniform.astype(np.float32).reshape(shape) * np.float32(math.sqrt(3) * deviation)
