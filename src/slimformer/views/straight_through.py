"""The gradient that rounding functions pretend to have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def remember(ctx: Any, x: Tensor, clip: float | None) -> float | None:
    """Keep for `pass_inside` what it needs of `x`, and return the clip that is still to be applied.

    Where all of `x` lies inside ±clip, which is a cheap question on the CPU, nothing is kept and nothing has to be
    clipped.
    """
    if clip is not None and readable(x) and float(x.amax()) < clip and float(x.amin()) > -clip:
        clip = None
    ctx.clip = clip
    if clip is not None:
        ctx.save_for_backward(x)
    return clip


def pass_inside(ctx: Any, gradient: Tensor) -> Tensor:
    """Straight-through gradient that is zero where the saved input lies on or beyond ±clip."""
    if ctx.clip is None:
        return gradient
    (saved,) = ctx.saved_tensors
    outside: Tensor = saved.abs() >= ctx.clip
    return gradient.masked_fill(outside, 0)


def readable(x: Tensor) -> bool:
    """Whether a value of `x` can be looked at without making another device, or a compiler, wait."""
    return x.device.type == "cpu" and x.numel() > 0 and not torch.compiler.is_compiling()
