"""The additive attention mask a block really used, whatever form its attention received it in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimformer.errors import TapError

if TYPE_CHECKING:
    from slimformer.anatomy.block import Block
    from slimformer.anatomy.scores import Call


def additive_mask(block: Block, scores: Tensor, call: Call) -> Tensor | None:
    """What the block's attention adds to its scores: [batch or 1, 1, query, key], or None for nothing.

    Eager attention receives an additive mask, sdpa a boolean one or none at all with a causal flag, flash
    attention the padding alone; DeBERTa multiplies the padding mask with itself.
    """
    mask = call.get("attention_mask")
    if mask is not None and not isinstance(mask, Tensor):
        raise TapError(
            f"block {block.index} received its mask as {type(mask).__name__}, which cannot be read back; "
            "load the model with `attn_implementation='sdpa'` or `'eager'`"
        )
    if block.family.scores == "disentangled" and mask is not None:
        mask = mask.bool()
    if mask is not None and mask.dim() == 4:
        return _additive(mask, scores) if mask.dtype == torch.bool else mask.to(scores.dtype)
    visible = _window(block, scores)
    if mask is not None:
        padding = mask.bool()[:, None, None, :]
        visible = padding if visible is None else visible & padding
    return None if visible is None else _additive(visible, scores)


def _window(block: Block, scores: Tensor) -> Tensor | None:
    """Which key each query may see by position alone: [query, key], or None for all."""
    queries, keys = scores.shape[-2:]
    ahead = torch.arange(keys, device=scores.device)[None, :] - torch.arange(queries, device=scores.device)[:, None]
    causal = bool(getattr(block.attention, "is_causal", block.family.causal))
    window = getattr(block.attention, "sliding_window", None)
    visible = ahead <= 0 if causal else None
    if window is not None:
        near = ahead.abs() < window
        visible = near if visible is None else visible & near
    return visible


def _additive(visible: Tensor, scores: Tensor) -> Tensor:
    lowest = torch.finfo(scores.dtype).min
    return torch.zeros((), dtype=scores.dtype, device=scores.device).masked_fill(~visible, lowest)
