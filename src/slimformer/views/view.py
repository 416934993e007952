"""What all views share: a name, a description, which may follow which, and the gradient they pretend to have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from slimformer.errors import ViewError

if TYPE_CHECKING:
    from collections.abc import Sequence


class View(nn.Module, ABC):
    """A re-parametrization of a weight matrix, read as [out, in].

    A view never changes the stored weight. Subclasses say in `after` why they cannot follow a view that
    is already there, if they cannot.
    """

    kind: ClassVar[str]

    @abstractmethod
    def forward(self, weight: Tensor) -> Tensor:
        """Return what the model is to use in place of `weight`."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Everything but tensors that is needed to build this view again, as JSON types."""

    def after(self, earlier: View) -> str | None:
        """Why this view cannot stand on top of `earlier`, or None if it can."""
        return f"the weight is already under a {earlier.kind} view" if earlier.kind == self.kind else None


def check_stack(view: View, earlier: Sequence[View], where: str) -> None:
    """Raise with the reason where `view` cannot be put on top of the views already there."""
    for below in earlier:
        reason = view.after(below)
        if reason is not None:
            raise ViewError(f"cannot put a {view.kind} view on `{where}`: {reason}")


#: Reason why anything that reads whole rows or holds a value per weight goes below a slice.
BELOW_SLICE = (
    "it is sliced already, and what is stored belongs to the full matrix so that all widths share it; "
    "strip the slice, attach this view, then slice again"
)


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
