"""Soft labels for every kind of head: classes, numbers, tags, choices, spans and next tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.objectives import mean_square, soft_label_loss

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
#: Inputs that only serve a head's own loss, which is not computed here.
LABELS = ("labels", "start_positions", "end_positions")


def prediction_loss(
    teacher: Any,
    student: Any,
    inputs: dict[str, Any],
    *,
    regression: bool = False,
    next_token: bool = False,
    mean_over_classes: bool = False,
) -> Tensor:
    """How far what a student's head says is from what the teacher's says.

    Classes and choices: cross-entropy with soft labels. Numbers: squared difference. Tags and tokens: cross-entropy
    at every position that has a label. Spans: cross-entropy over positions, of start and end, their mean.

    Args:
        teacher: Outputs of the teacher.
        student: Outputs of the student.
        inputs: The batch, labels included.
        regression: Whether the logits are numbers.
        next_token: Whether a position predicts the token after it.
        mean_over_classes: Divide by the number of classes.
    """
    if regression:
        return mean_square(teacher.logits, student.logits)
    if hasattr(student, "start_logits"):
        mask = inputs.get("attention_mask")
        ends = [
            soft_label_loss(_inside(getattr(teacher, name), mask), _inside(getattr(student, name), mask))
            for name in ("start_logits", "end_logits")
        ]
        return (ends[0] + ends[1]) / 2
    theirs, ours = teacher.logits, student.logits
    if ours.dim() == 3:
        counts = _positions(inputs)
        if next_token:
            theirs, ours, counts = theirs[:, :-1], ours[:, :-1], counts[:, 1:]
        theirs, ours = theirs[counts], ours[counts]
        if not len(ours):  # a batch without a label
            nothing: Tensor = student.logits.sum() * 0
            return nothing
    return soft_label_loss(theirs, ours, mean_over_classes=mean_over_classes)


def _inside(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits over positions, with padding out of reach."""
    if mask is None:
        return logits
    # Low enough for a probability of 0, and finite, as 0 times infinity is no number.
    return logits.masked_fill(~mask.bool(), -1e4)


def _positions(inputs: dict[str, Any]) -> Tensor:
    labels: Tensor | None = inputs.get("labels")
    if labels is not None and labels.dim() == 2:
        return labels != IGNORED
    mask: Tensor = inputs["attention_mask"]
    return mask.bool()
