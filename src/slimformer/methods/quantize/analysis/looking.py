"""How a model is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy
from slimformer.methods.quantize.predictions import LABELS
from slimformer.methods.quantize.recording import Recorder, Seen
from slimformer.views.attention import use_attention

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn


@torch.no_grad()
def look(model: nn.Module, batch: dict[str, Any], terms: Iterable[str] = ("map",)) -> Seen:
    """What a model computes for a batch in eval mode: scores, sub-layer outputs, hidden states."""
    inputs = {name: value for name, value in batch.items() if name not in LABELS}
    anatomy = Anatomy.of(model)
    if anatomy.family.causal:
        inputs["use_cache"] = False
    before, was_training = use_attention(model), model.training
    model.eval()
    try:
        return Recorder(model, range(len(anatomy.blocks)), terms)(model, inputs)
    finally:
        model.train(was_training)
        if before is not None:
            use_attention(model, before)


def attention_maps(model: nn.Module, batch: dict[str, Any]) -> list[Tensor]:
    """Attention probabilities of every block: [batch, heads, query, key]."""
    return [scores.masked.float().softmax(dim=-1) for scores in look(model, batch).scores]


def tokens_that_count(batch: dict[str, Any], like: Tensor) -> Tensor:
    """Boolean [batch, length]: True where a token is no padding."""
    mask: Tensor | None = batch.get("attention_mask")
    if mask is None:
        return torch.ones(like.shape[0], like.shape[-2], dtype=torch.bool, device=like.device)
    return mask.flatten(0, 1).bool() if mask.dim() == 3 else mask.bool()
