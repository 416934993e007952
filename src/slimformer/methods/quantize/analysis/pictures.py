"""Attention maps to look at, one model beside the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.methods.quantize.analysis.looking import attention_maps, tokens_that_count
from slimformer.report import Figure, Finding, heatmaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn


def attention_pictures(
    models: dict[str, nn.Module],
    batch: dict[str, Any],
    block: int = -1,
    head: int | None = None,
    sentence: int = 0,
    tokens: Sequence[str] | None = None,
) -> Finding[dict[str, Tensor]]:
    """The attention map of one block for one sentence, for some models, such as the teacher and students of it.

    Args:
        models: Models by name, in the order of the pictures.
        batch: A batch.
        block: Which block.
        head: Which head; None for the mean over the heads.
        sentence: Which sentence of the batch.
        tokens: The sentence's tokens, for the axes.
    """
    data = {}
    for name, model in models.items():
        attention = attention_maps(model, batch)[block]
        chosen = tokens_that_count(batch, attention)[sentence]
        heads = attention[sentence] if head is None else attention[sentence][head : head + 1]
        data[name] = heads.mean(dim=0)[chosen][:, chosen]
    pictures = {name: attention.cpu().numpy() for name, attention in data.items()}
    which = "mean of the heads" if head is None else f"head {head}"
    return Finding(data, Figure(f"Attention of block {block}, {which}", heatmaps(pictures, tokens)))
