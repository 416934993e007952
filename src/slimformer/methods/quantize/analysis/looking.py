"""How a model is looked at, and which tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy
from slimformer.errors import ConfigError
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


def tokens_in(batch: dict[str, Any], numbers: Iterable[int]) -> Tensor:
    """Boolean [batch, length]: True where a token of a batch has one of these numbers.

    Example:
        >>> separators = tokens_in(batch, [tokenizer.sep_token_id])
        >>> special = tokens_in(batch, tokenizer.all_special_ids)
    """
    ids: Tensor = batch["input_ids"]
    ids = ids.flatten(0, 1) if ids.dim() == 3 else ids
    chosen: Tensor = torch.isin(ids, torch.tensor(list(numbers), device=ids.device))
    return chosen


def select_tokens(token: int | Tensor, counts: Tensor) -> Tensor:
    """Boolean [batch, length]: the tokens at a position, or those named, without padding; none at all is refused."""
    if isinstance(token, int):
        length = counts.shape[1]
        if not -length <= token < length:
            raise ConfigError(f"there is no token {token} in texts of {length}; give {-length} to {length - 1}")
        chosen = torch.zeros_like(counts)
        chosen[:, token] = True
    else:
        chosen = token.to(counts.device).bool()
    if chosen.shape != counts.shape:
        raise ConfigError(
            f"the tokens to look at are {list(chosen.shape)} and the batch is {list(counts.shape)}; give a boolean of "
            "[batch, length]"
        )
    chosen = chosen & counts
    if not chosen.any():
        raise ConfigError("none of the tokens to look at is in the batch; choose others, or other texts")
    return chosen
