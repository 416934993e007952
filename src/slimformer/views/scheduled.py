"""Masks that change their nature while they are trained: a rising sparsity, single weights that become units."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slimformer.views.mask import MaskView, binarize, tile

#: Scores looked at to find the threshold of a sparsity during training; in the end all are.
SAMPLE = 1 << 16


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
