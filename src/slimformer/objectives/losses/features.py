"""Features of the whole input, from a teacher of the same shape (arXiv 2210.02871, algorithm 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from slimformer.errors import ObjectiveError
from slimformer.models.pooling import pool

if TYPE_CHECKING:
    from torch import Tensor

#: Which positions are compared: each, their mean, or the first, which is [CLS] in encoders.
Positions = Literal["all", "mean", "first"]
#: What becomes of the squared differences of an example: their mean, or their sum as in the paper.
Reduction = Literal["mean", "sum"]

_POOLING = {"mean": "mean", "first": "cls"}


def feature_loss(
    teacher: Tensor,
    student: Tensor,
    attention_mask: Tensor | None = None,
    positions: Positions = "all",
    reduction: Reduction = "mean",
) -> Tensor:
    """Squared differences of features, `‖f(x) - f₀(x)‖²`, a mean over examples.

    The paper's norm, `sum`, grows with length and width, so that with gradients clipped to length 1 it alone would
    decide on the step; `mean` divides what an example contributes by its positions and features. The published code
    is `sum` of the `first` position.

    Args:
        teacher: [batch, length, hidden]; no gradient flows to it.
        student: The same of the student.
        attention_mask: [batch, length], 1 for positions that count, on whichever side the padding is; None for all.
        positions: Which positions are compared: `all`, their `mean`, or the `first` that counts.
        reduction: Over the positions and features of an example: `mean` or `sum`.

    Example:
        >>> feature_loss(unmasked_features(teacher, pixels), unmasked_features(student, pixels), positions="first")
    """
    if teacher.shape != student.shape:
        raise ObjectiveError(
            f"features of the teacher are {list(teacher.shape)} and of the student {list(student.shape)}; "
            "shapes must agree"
        )
    output = student.to(torch.promote_types(student.dtype, torch.float32))
    difference = output - teacher.detach().to(output.dtype)  # [batch, length, hidden]
    counts = difference.new_ones(difference.shape[:2]) if attention_mask is None else attention_mask.to(difference)
    # By selection: what stands in padding may be infinite, and so would its gradient.
    difference = difference.masked_fill(counts[..., None] == 0, 0)
    if positions != "all":
        # Both ways of pooling are linear, so the difference of two vectors is that of their differences.
        difference = pool(difference, counts, _POOLING[positions])[:, None]
        counts = counts.new_ones(len(counts), 1)
    squares = difference.square().sum((1, 2))  # [batch]
    if reduction == "mean":
        squares = squares / (counts.sum(1).clamp(min=1) * difference.shape[-1])
    return squares.mean()
