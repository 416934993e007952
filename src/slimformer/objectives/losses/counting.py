"""What losses have in common: means over what counts, and which tokens a token sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

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


def mean_over_texts(losses: Tensor, chosen: Tensor) -> Tensor:
    """Mean over the chosen tokens of each text, then over the texts that have one.

    Args:
        losses: One for each chosen token, text by text: [tokens].
        chosen: Which tokens these are: boolean, [batch, length].
    """
    counts = chosen.sum(dim=1)  # [batch]
    texts = chosen.nonzero()[:, 0]  # [tokens]: the text of each
    return (losses / counts[texts]).sum() / (counts > 0).sum().clamp(min=1)


def hidden_keys(mask: Tensor, causal: bool) -> Tensor:
    """Which keys each query does not see: [batch, 1, query, key].

    A token sees the tokens that count and, with `causal`, none after itself. Padding sees everything, so that no row
    is empty and 0/0 nowhere; losses give its rows no weight.

    Args:
        mask: Boolean, [batch, length], True for tokens that count.
        causal: Whether later tokens are hidden.
    """
    hidden = ~mask[:, None, None, :]
    if causal:
        length = mask.shape[1]
        hidden = hidden | torch.ones(length, length, dtype=torch.bool, device=mask.device).triu(1)
    return hidden & mask[:, None, :, None]
