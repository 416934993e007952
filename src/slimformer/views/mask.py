"""Weights kept or dropped by one bit each, learned through scores; with a sparsity that rises, units that form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from slimformer.errors import ViewError
from slimformer.views.view import BELOW_SLICE, View

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Threshold and half-width of the initial score range of the paper's reference implementation.
THRESHOLD = 0.01
INITIAL_SCALE = 0.02
#: Scores looked at to find the threshold of a sparsity during training; in the end all are.
SAMPLE = 1 << 16


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


class ScheduledMask(MaskView):
    """A mask with a sparsity that is reached step by step, and scores that may be drawn together by groups.

    In training mode the mask is that of the moment. In evaluation mode it is the one the run will end with if
    it ends now: the whole sparsity, whole groups. So what is measured on dev is what would be kept.

    With progress p, the share dropped is `target + (start - target)·(1 - p)³`, and a score counts as
    `(1 - p)·own + p·mean of its group`.

    Args:
        scores: One score per weight or per tile.
        threshold: What a score has to exceed where there is no target.
        start: Share dropped at the beginning.
        target: Share dropped in the end; None to leave it to the threshold.
        group: Shape of one score per group, to which single scores are drawn; None for no groups.
    """

    kind = "scheduled mask"

    def __init__(
        self,
        scores: Tensor,
        threshold: float,
        start: float,
        target: float | None = None,
        group: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(scores, threshold)
        self.start = start
        self.target = target
        self.group = group
        self.register_buffer("progress", torch.zeros(()))
        self.progress: Tensor
        self._settled: tuple[int, Tensor] | None = None

    @property
    def binary(self) -> Tensor:
        """The bits of the moment as numbers, one per score, or one per group where groups are whole."""
        if self.training:
            scores = self._drawn(float(self.progress))
            return binarize(scores, self._threshold(scores, self._share(), exact=False))
        return self.final_bits()

    def train(self, mode: bool = True) -> Self:
        """Switch between both modes; what a run would end with is worked out anew after it."""
        # Scores of which each process holds a part change without their version being counted.
        self._settled = None
        return super().train(mode)

    def final_bits(self) -> Tensor:
        """The bits the run would end with now: one per score, or one per group; at least one of a unit is kept."""
        version = self.scores._version
        if self._settled is None or self._settled[0] != version or self._settled[1].device != self.scores.device:
            scores = self.scores.detach() if self.group is None else _means(self.scores.detach(), self.group)
            bits = scores > self._threshold(scores, self.target, exact=True)
            if not bits.any():
                bits.view(-1)[scores.argmax()] = True
            self._settled = (version, bits.to(self.scores.dtype))
        return self._settled[1]

    def forward(self, weight: Tensor) -> Tensor:
        """Zero the weights whose bit is 0."""
        return weight * tile(self.binary.to(weight.dtype), weight.shape)

    def spec(self) -> dict[str, Any]:
        """Settings of this view; scores and progress travel in the state dict."""
        group = None if self.group is None else list(self.group)
        return {**super().spec(), "start": self.start, "target": self.target, "group": group}

    def _drawn(self, pull: float) -> Tensor:
        if self.group is None or pull == 0:
            return self.scores
        means = tile(_means(self.scores, self.group), self.scores.shape).expand_as(self.scores)
        return means if pull >= 1 else torch.lerp(self.scores, means, pull)

    def _share(self) -> float | None:
        if self.target is None:
            return None
        return self.target + (self.start - self.target) * (1 - float(self.progress)) ** 3

    def _threshold(self, scores: Tensor, share: float | None, *, exact: bool) -> float:
        if share is None:
            return self.threshold
        flat = scores.detach().flatten()
        if not exact and flat.numel() > SAMPLE:
            flat = flat[:: flat.numel() // SAMPLE]
        dropped = min(round(share * flat.numel()), flat.numel() - 1)
        return float(flat.kthvalue(dropped).values) if dropped > 0 else float("-inf")


def _means(scores: Tensor, group: tuple[int, int]) -> Tensor:
    rows, columns = group
    means: Tensor = scores.unflatten(1, (columns, -1)).unflatten(0, (rows, -1)).mean(dim=(1, 3))
    return means


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
