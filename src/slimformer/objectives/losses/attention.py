"""Attention maps and scores of one layer (arXiv 2211.11014, equations 6 to 8)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slimformer.errors import ObjectiveError
from slimformer.objectives.losses.counting import hidden_keys, mean_square


def attention_map_loss(
    teacher_scores: Tensor,
    student_scores: Tensor,
    attention_mask: Tensor | None,
    temperature: float = 1.0,
    causal: bool = False,
) -> Tensor:
    """Divergence of the student's attention maps from the teacher's, for one layer.

    With AM = softmax(scores/τ) over the tokens that count, the loss is the mean over sentences and heads of
    `τ²/|x| Σ_t KL(AM^T[t] ‖ AM^S[t])`. Gradients of a softened divergence shrink with 1/τ²; the factor makes up for it
    (arXiv 1503.02531, section 2), so that another τ means another shape and not a weaker loss. Padding, on either side,
    counts neither as row nor as column.

    Args:
        teacher_scores: Scaled attention scores, [batch, heads, query, key]; no gradient flows to them.
        student_scores: The same of the student.
        attention_mask: [batch, length], 1 for tokens that count; None for all.
        temperature: τ; the paper finds 1 best.
        causal: Whether a token sees only itself and those before it.

    Example:
        >>> attention_map_loss(teacher_taps[3].scores, student_taps[3].scores, batch["attention_mask"])
    """
    _check(teacher_scores, student_scores, attention_mask)
    if temperature <= 0:
        raise ObjectiveError(f"`temperature` is {temperature}; give a number above 0")
    precision = torch.promote_types(student_scores.dtype, torch.float32)
    mask = _tokens(student_scores, attention_mask)
    hidden = hidden_keys(mask, causal)
    teacher_log_map = _log_map(teacher_scores.detach().to(precision) / temperature, mask, hidden)
    student_log_map = _log_map(student_scores.to(precision) / temperature, mask, hidden)
    # [batch, heads, query]
    divergence = (teacher_log_map.exp() * (teacher_log_map - student_log_map).masked_fill(hidden, 0)).sum(-1)
    rows = mask.to(precision) / mask.sum(-1, keepdim=True).clamp(min=1)
    return temperature**2 * (divergence * rows[:, None]).sum(-1).mean()


def attention_score_loss(
    teacher_scores: Tensor,
    student_scores: Tensor,
    attention_mask: Tensor | None,
    reference: bool = False,
    causal: bool = False,
) -> Tensor:
    """Mean squared difference of attention scores for one layer, TernaryBERT's loss.

    Args:
        teacher_scores: Attention scores, [batch, heads, query, key]; no gradient flows to them.
        student_scores: The same of the student.
        attention_mask: [batch, length], 1 for tokens that count; None for all.
        reference: Do as the published code: scores come with their additive mask, those of -100 and below count
            as 0, and the mean is over everything, padding included.
        causal: Whether a token sees only itself and those before it; the other pairs do not count then.
    """
    _check(teacher_scores, student_scores, attention_mask)
    if reference:
        teacher_scores = teacher_scores.masked_fill(teacher_scores <= -100, 0)
        student_scores = student_scores.masked_fill(student_scores <= -100, 0)
        return mean_square(teacher_scores, student_scores)
    mask = _tokens(student_scores, attention_mask)
    both = mask[:, None, :, None] & ~hidden_keys(mask, causal)
    return mean_square(teacher_scores, student_scores, both.expand_as(student_scores))


def _tokens(scores: Tensor, attention_mask: Tensor | None) -> Tensor:
    if attention_mask is None:
        return torch.ones(scores.shape[0], scores.shape[-1], dtype=torch.bool, device=scores.device)
    return attention_mask.to(scores.device).bool()


def _log_map(scores: Tensor, mask: Tensor, hidden: Tensor) -> Tensor:
    # Rows of padding may hold anything, also nothing but -inf; they have no weight, but must stay finite.
    finite = scores.masked_fill(~mask[:, None, :, None], 0)
    return finite.masked_fill(hidden, -math.inf).log_softmax(dim=-1)


def _check(teacher: Tensor, student: Tensor, attention_mask: Tensor | None) -> None:
    if teacher.shape != student.shape:
        raise ObjectiveError(
            f"scores of the teacher are {list(teacher.shape)} and of the student {list(student.shape)}; they need the "
            "same heads and tokens (distil relations where head counts differ)"
        )
    if attention_mask is not None and tuple(attention_mask.shape) != (student.shape[0], student.shape[-1]):
        raise ObjectiveError(
            f"the mask is {list(attention_mask.shape)} and the scores are {list(student.shape)}; "
            "give a mask of [batch, length]"
        )
