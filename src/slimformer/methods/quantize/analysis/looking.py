"""How a model is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy
from slimformer.objectives.recording import Recorder, Request
from slimformer.views.attention import use_attention

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn


@torch.no_grad()
def look(model: nn.Module, batch: dict[str, Any], names: Iterable[str] = ("scores", "mask")) -> list[dict[str, Tensor]]:
    """What a model computes for a batch in eval mode, by name: scores, masks, sub-layer outputs of every block."""
    blocks = range(len(Anatomy.of(model).blocks))
    before, was_training = use_attention(model), model.training
    model.eval()
    try:
        activations = Recorder(model, Request.of(blocks, names), read_scores=True)(batch)
    finally:
        model.train(was_training)
        if before is not None:
            use_attention(model, before)
    return [
        {name: activations[f"{block}.{name}"] for name in names if f"{block}.{name}" in activations} for block in blocks
    ]


def attention_maps(model: nn.Module, batch: dict[str, Any]) -> list[Tensor]:
    """Attention probabilities of every block: [batch, heads, query, key]."""
    blocks = look(model, batch)
    masked = [block["scores"] + block["mask"] if "mask" in block else block["scores"] for block in blocks]
    return [scores.float().softmax(dim=-1) for scores in masked]


def tokens_that_count(batch: dict[str, Any], like: Tensor) -> Tensor:
    """Boolean [batch, length]: True where a token is no padding."""
    mask: Tensor | None = batch.get("attention_mask")
    if mask is None:
        return torch.ones(like.shape[0], like.shape[-2], dtype=torch.bool, device=like.device)
    return mask.flatten(0, 1).bool() if mask.dim() == 3 else mask.bool()
