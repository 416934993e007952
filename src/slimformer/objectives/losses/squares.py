"""The mean squared difference, over what counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.errors import ObjectiveError

if TYPE_CHECKING:
    from torch import Tensor


def mean_square(teacher: Tensor, student: Tensor, counts: Tensor | None = None) -> Tensor:
    """Mean of the squared differences of two tensors of one shape.

    Args:
        teacher: What to match; no gradient flows to it.
        student: What is matched.
        counts: Boolean, of the same shape; entries that are False are left out. None for all.
    """
    if teacher.shape != student.shape:
        raise ObjectiveError(
            f"the teacher gives {list(teacher.shape)} and the student {list(student.shape)}; shapes must agree"
        )
    difference = student - teacher.detach().to(student.dtype)
    if counts is None:
        return difference.square().mean()
    # Left out before the square and by selection: what stands in padding may be infinite, and so would its gradient.
    return difference.masked_fill(~counts, 0).square().sum() / counts.sum().clamp(min=1)
