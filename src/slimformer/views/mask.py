"""Weights kept or dropped by one bit each, learned through scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slimformer.errors import ViewError
from slimformer.views.view import BELOW_SLICE, View

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Threshold and half-width of the initial score range of the paper's reference implementation.
THRESHOLD = 0.01
INITIAL_SCALE = 0.02


def binarize(scores: Tensor, threshold: float | Tensor = THRESHOLD) -> Tensor:
    """1 where a score is above the threshold, else 0; the gradient passes straight through."""
    binary: Tensor = _Binarize.apply(scores, threshold)  # type: ignore[no-untyped-call]
    return binary


def uniform_scores(
    shape: Sequence[int],
    sparsity: float,
    threshold: float = THRESHOLD,
    scale: float = INITIAL_SCALE,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Random scores of which the share `sparsity` starts at or below the threshold.

    Uniform between -scale and (scale + threshold)/sparsity - scale.
    """
    _check_sparsity(sparsity)
    high = (scale + threshold) / sparsity - scale
    return torch.empty(*shape).uniform_(-scale, high, generator=generator)


def magnitude_scores(weight: Tensor, sparsity: float, threshold: float = THRESHOLD) -> Tensor:
    """Scores that start with the smallest weights dropped: 2·threshold for those kept, 0 for the rest."""
    _check_sparsity(sparsity)
    magnitude = weight.detach().abs()
    dropped = int(magnitude.numel() * sparsity)
    if dropped == 0:
        return torch.full_like(magnitude, 2 * threshold)
    limit = magnitude.flatten().kthvalue(dropped).values
    return torch.where(magnitude > limit, 2 * threshold, 0.0).to(weight.dtype)


class MaskView(View):
    """Shows W ⊙ [M > θ]; W stays as it is and the scores M are what is trained.

    Args:
        scores: One score per weight, or per tile of equal size: [out, in], [heads, 1] for rows head by
            head, [1, neurons] for columns, [1, 1] for the matrix as a whole. A parameter that is given
            here is used as it is, so that several matrices can share it.
        threshold: θ; a weight is kept where its score is above it.
    """

    kind = "mask"

    def __init__(self, scores: Tensor, threshold: float = THRESHOLD) -> None:
        super().__init__()
        self.scores = scores if isinstance(scores, nn.Parameter) else nn.Parameter(scores.detach().clone())
        self.threshold = threshold

    @property
    def binary(self) -> Tensor:
        """The bits as numbers, one per score."""
        return binarize(self.scores, self.threshold)

    def forward(self, weight: Tensor) -> Tensor:
        """Zero the weights whose bit is 0."""
        if self.scores.shape == weight.shape:
            masked: Tensor = _Mask.apply(weight, self.scores, self.threshold)  # type: ignore[no-untyped-call]
            return masked
        return weight * tile(self.binary.to(weight.dtype), weight.shape)

    def spec(self) -> dict[str, Any]:
        """Settings of this view; the scores travel in the state dict."""
        return {"kind": self.kind, "scores": list(self.scores.shape), "threshold": self.threshold}

    def after(self, earlier: View) -> str | None:
        """A mask has a bit for every weight, so a slice cannot come first."""
        if isinstance(earlier, MaskView):
            return f"the weight is already under a {earlier.kind} view"
        return BELOW_SLICE if earlier.kind == "slice" else super().after(earlier)

    def check(self, shape: Sequence[int], where: str) -> None:
        """Raise where the scores do not tile a weight of this shape."""
        if len(shape) != self.scores.dim() or any(
            size % parts for size, parts in zip(shape, self.scores.shape, strict=True)
        ):
            raise ViewError(
                f"scores of {list(self.scores.shape)} do not tile `{where}` of {list(shape)}; "
                "each axis of the weight must be a multiple of the scores'"
            )

    def extra_repr(self) -> str:
        """Show the settings in the model's print-out."""
        return f"scores={list(self.scores.shape)}, threshold={self.threshold}"


class _Binarize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, threshold: float | Tensor) -> Tensor:
        return (scores > threshold).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Mask(torch.autograd.Function):
    """W ⊙ [M > θ] in one step: the same numbers as `W * binarize(M)`, without a mask in floats being made and kept."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scores: Tensor, threshold: float) -> Tensor:
        # A product with bytes is several times faster than one with booleans or with a mask made of floats.
        bits = (scores > threshold).view(torch.uint8)
        ctx.save_for_backward(weight, *([bits] if ctx.needs_input_grad[0] else []))
        return weight * bits

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weight, *bits = ctx.saved_tensors
        of_weight = gradient * bits[0] if bits else None
        return of_weight, gradient * weight if ctx.needs_input_grad[1] else None, None


def tile(binary: Tensor, shape: Sequence[int]) -> Tensor:
    """Repeat each bit over its tile of a weight of this shape; axes with one bit are left to broadcasting."""
    for axis, size in enumerate(shape):
        if binary.shape[axis] not in (1, size):
            binary = binary.repeat_interleave(size // binary.shape[axis], dim=axis)
    return binary


def _check_sparsity(sparsity: float) -> None:
    if not 0 < sparsity < 1:
        raise ViewError(f"`sparsity` is {sparsity}; the share of weights dropped at the start lies between 0 and 1")
