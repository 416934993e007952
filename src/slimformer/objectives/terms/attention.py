"""Attention, layer by layer: its maps and its scores (arXiv 2211.11014, equations 6 to 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field

from slimformer.config import Temperature
from slimformer.objectives.losses.attention import attention_map_loss, attention_score_loss
from slimformer.objectives.recording import Request
from slimformer.objectives.terms.term import BlockOptions, BlockTerm, Mean, check_heads, count_examples, token_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from slimformer.anatomy import Anatomy
    from slimformer.objectives.recording import Activations

#: Additive masks are -3e38, which becomes infinite when divided by a temperature; this hides a token as well.
HIDDEN = -1e4


class AttentionMaps(BlockTerm):
    """Divergence of attention maps, summed over blocks, a mean over texts."""

    class Options(BlockOptions):
        """Which blocks, and how sharply."""

        temperature: Temperature = Field(1.0, description="τ of the maps, with a factor τ²; 1 is best in the paper.")

    part = "map"
    head_by_head = True
    names: ClassVar[tuple[str, ...]] = ("scores",)

    def check(self) -> None:
        """Refuse models with different heads."""
        super().check()
        check_heads("attention-maps", self.pairs, self.models)

    def student_request(self) -> Request:
        """Scores, and which tokens lie in a sliding window."""
        return _with_windows(super().student_request(), self.models.student)

    def teacher_request(self) -> Request:
        """The same."""
        return _with_windows(super().teacher_request(), self.models.pair[0])

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Divergence of the maps."""
        mask = token_mask(inputs)

        def loss(pair: tuple[int, int]) -> Tensor:
            own, other = pair
            window = student.get(f"{own}.mask")
            target = _in_window(teacher[f"{other}.scores"], teacher.get(f"{other}.mask", window))
            output = _in_window(student[f"{own}.scores"], window)
            return attention_map_loss(target, output, mask, self.options.temperature, self.models.causal)

        return self.mean(torch.stack(list(map(loss, self.pairs))).sum(), inputs)


class AttentionScores(BlockTerm):
    """Squared difference of attention scores, summed over blocks, a mean over pairs of tokens (arXiv 2009.12812)."""

    class Options(BlockOptions):
        """Which blocks, and what counts."""

        reference: bool = Field(
            False, description="As the published code: masked scores, -100 and below as 0, padding counted."
        )

    part = "score"
    head_by_head = True
    names: ClassVar[tuple[str, ...]] = ("scores",)

    def check(self) -> None:
        """Refuse models with different heads; the published code compares scores with their mask."""
        super().check()
        check_heads("attention-scores", self.pairs, self.models)
        self._recorded = ("scores", "mask") if self.options.reference else ("scores",)

    def student_request(self) -> Request:
        """Scores, and their mask if need be."""
        return Request.of([student for student, _ in self.pairs], self._recorded)

    def teacher_request(self) -> Request:
        """The same."""
        return Request.of([teacher for _, teacher in self.pairs], self._recorded)

    def count(self, inputs: Mapping[str, Any]) -> int:
        """Pairs of tokens, of which the second is seen by the first."""
        mask = token_mask(inputs)
        if mask is None:
            return count_examples(inputs)
        if self.options.reference:
            return mask.numel() * mask.shape[-1]
        tokens = mask.sum(-1)
        return int((tokens * (tokens + 1) // 2 if self.models.causal else tokens * tokens).sum())

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """Mean squared difference of the scores."""
        mask = token_mask(inputs)

        def loss(pair: tuple[int, int]) -> Tensor:
            own, other = pair
            if self.options.reference:
                target, output = _masked(teacher, other), _masked(student, own)
                return attention_score_loss(target, output, None, reference=True)
            target, output = teacher[f"{other}.scores"], student[f"{own}.scores"]
            return attention_score_loss(target, output, mask, causal=self.models.causal)

        return self.mean(torch.stack(list(map(loss, self.pairs))).sum(), inputs)


def _with_windows(request: Request, anatomy: Anatomy) -> Request:
    """The same, with the mask of blocks that attend to a window."""
    windowed = [
        block
        for block in request.blocks
        if getattr(anatomy.blocks[block].attention, "sliding_window", None) is not None
    ]
    return request | Request.of(windowed, ("scores", "mask"))


def _in_window(scores: Tensor, window: Tensor | None) -> Tensor:
    return scores if window is None else scores + window.clamp(min=HIDDEN)


def _masked(activations: Activations, block: int) -> Tensor:
    scores, mask = activations[f"{block}.scores"], activations.get(f"{block}.mask")
    return scores if mask is None else scores + mask
