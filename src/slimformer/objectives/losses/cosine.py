"""Sentence embeddings: the angle between two vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

from slimformer.errors import ObjectiveError

if TYPE_CHECKING:
    from torch import Tensor


def cosine_loss(teacher: Tensor, student: Tensor) -> Tensor:
    """One minus the cosine of the angle between the embeddings, mean over texts.

    Args:
        teacher: [batch, width]; no gradient flows to it.
        student: The same of the student.

    Example:
        >>> cosine_loss(teacher_embeddings, student_embeddings)
    """
    if teacher.shape != student.shape:
        raise ObjectiveError(
            f"embeddings of the teacher are {list(teacher.shape)} and of the student {list(student.shape)}; "
            "map the student's to the teacher's width"
        )
    return (1 - functional.cosine_similarity(teacher.detach(), student, dim=-1)).mean()
