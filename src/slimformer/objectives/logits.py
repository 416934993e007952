"""Soft labels: what the teacher's head says."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    if teacher_logits.shape != student_logits.shape:
        raise ObjectiveError(
            f"logits of the teacher are {list(teacher_logits.shape)} and of the student {list(student_logits.shape)}; "
            "both need the same classes"
        )
    if temperature <= 0:
        raise ObjectiveError(f"`temperature` is {temperature}; give a number above 0")
    wanted = (teacher_logits.detach().to(student_logits.dtype) / temperature).softmax(-1)
    losses = -(wanted * (student_logits / temperature).log_softmax(-1)).sum(-1)
    return losses.mean() / (student_logits.shape[-1] if mean_over_classes else 1)
