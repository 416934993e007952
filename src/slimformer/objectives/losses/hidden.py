"""Hidden states: outputs of blocks, of attention sub-layers, or of the embeddings (arXiv 2009.12812, 2211.11014)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.objectives.losses.counting import mean_square

if TYPE_CHECKING:
    from torch import Tensor


def hidden_state_loss(teacher: Tensor, student: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Mean squared difference of hidden states, for one layer.

    Serves as the layer loss on block outputs and embeddings, as the attention-output loss on the sub-layer's output
    `Y = LayerNorm(X + MHA(X))`, and as its ablation on MHA(X) alone.

    Args:
        teacher: [batch, length, hidden]; no gradient flows to it.
        student: The same of the student.
        attention_mask: [batch, length], 1 for tokens that count; None counts padding too, as the published code of
            knowledge-distilled quantization does.

    Example:
        >>> hidden_state_loss(teacher_taps[3].output, student_taps[3].output, batch["attention_mask"])
    """
    if attention_mask is None:
        return mean_square(teacher, student)
    counts = attention_mask.to(student.device).bool()[..., None].expand_as(student)
    return mean_square(teacher, student, counts)
