"""Predictions compared: soft labels of a teacher's head (arXiv 1503.02531), and two answers to the same question."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from slimformer.errors import ObjectiveError

if TYPE_CHECKING:
    from torch import Tensor


def soft_label_loss(
    teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0, mean_over_classes: bool = False
) -> Tensor:
    """Cross-entropy of the student's predictions with the teacher's as soft labels.

    `-Σ_c softmax(t/τ)_c · log softmax(s/τ)_c`, summed over classes, mean over examples.

    Args:
        teacher_logits: [..., classes]; no gradient flows to them.
        student_logits: The same of the student.
        temperature: τ.
        mean_over_classes: Divide by the number of classes, as TernaryBERT does.
    """
    _check(teacher_logits, student_logits, temperature)
    labels = (teacher_logits.detach().to(student_logits.dtype) / temperature).softmax(-1)
    losses = -(labels * (student_logits / temperature).log_softmax(-1)).sum(-1)
    return losses.mean() / (student_logits.shape[-1] if mean_over_classes else 1)


def soft_token_loss(
    teacher_logits: Tensor, student_logits: Tensor, attention_mask: Tensor, temperature: float = 1.0
) -> Tensor:
    """The same for a prediction at every token: a mean over each text's tokens and then over texts.

    Args:
        teacher_logits: [batch, length, classes]; no gradient flows to them.
        student_logits: The same of the student.
        attention_mask: [batch, length], 1 for tokens that count.
        temperature: τ.
    """
    _check(teacher_logits, student_logits, temperature)
    weights = attention_mask / attention_mask.sum(1, keepdim=True).clamp(min=1) / len(attention_mask)
    labels = (teacher_logits.detach() / temperature).softmax(-1)
    losses = -(labels * (student_logits / temperature).log_softmax(-1)).sum(-1)  # [batch, length]
    return (losses.masked_fill(~attention_mask.bool(), 0) * weights.to(student_logits.dtype)).sum()


def soft_multilabel_loss(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Binary cross-entropy with the teacher's probability of each label, mean over labels and examples.

    `-p·log q - (1-p)·log(1-q)` with `p = sigmoid(t/τ)` and `q = sigmoid(s/τ)`: any number of labels may hold.

    Args:
        teacher_logits: [batch, labels]; no gradient flows to them.
        student_logits: The same of the student.
        temperature: τ.
    """
    _check(teacher_logits, student_logits, temperature)
    labels = (teacher_logits.detach().to(student_logits.dtype) / temperature).sigmoid()
    return functional.binary_cross_entropy_with_logits(student_logits / temperature, labels)


def symmetric_kl_loss(logits: Tensor, other: Tensor) -> Tensor:
    """How far two predictions are from each other, both ways; gradients flow to both.

    `KL(p‖q) + KL(q‖p) = Σ_c (p_c - q_c) · (log p_c - log q_c)`, summed over classes, mean over examples, as in R3F
    (arXiv 2008.03156). As a product of differences it is never below 0, and keeps its digits where the two are nearly
    alike.

    Args:
        logits: [batch, classes].
        other: The same shape.
    """
    _check(other, logits)
    wide = torch.promote_types(logits.dtype, torch.float32)
    first, second = (each.to(wide).log_softmax(-1) for each in (logits, other))
    return ((first.exp() - second.exp()) * (first - second)).sum(-1).mean()


def _check(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> None:
    if teacher.shape != student.shape:
        raise ObjectiveError(
            f"logits of the teacher are {list(teacher.shape)} and of the student {list(student.shape)}; "
            "both need the same classes"
        )
    if temperature <= 0:
        raise ObjectiveError(f"`temperature` is {temperature}; give a number above 0")
