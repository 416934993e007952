"""Attention scores as each family computes them, from queries and keys.

A rule receives the block, queries and keys cut into heads and the arguments its attention module was
called with, and returns scaled scores without any mask. All of it is differentiable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from slimformer.errors import TapError

if TYPE_CHECKING:
    from slimformer.anatomy.block import Block
    from slimformer.anatomy.family import ScoreRule

Call = Mapping[str, Any]
Rule = Callable[["Block", Tensor, Tensor, Call], Tensor]


def attention_scores(block: Block, query: Tensor, key: Tensor, call: Call) -> Tensor:
    """Recompute a block's scaled attention scores.

    Args:
        block: The block whose family says how.
        query: Queries, after the family's query norm if it has one, [batch, length, heads x width].
        key: Keys, likewise, [batch, length, key-value heads x width].
        call: The arguments the block's attention module was called with, by name.

    Returns:
        [batch, heads, query, key], before any mask.
    """
    query = query.unflatten(-1, (-1, block.head_width))  # [batch, length, heads, width]
    key = key.unflatten(-1, (-1, block.head_width))
    return _RULES[block.family.scores](block, query.transpose(1, 2), key.transpose(1, 2), call)


def _dot(block: Block, query: Tensor, key: Tensor, call: Call) -> Tensor:
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key = key.repeat_interleave(group, dim=1)
    scaling: float = getattr(block.attention, "scaling", block.head_width**-0.5)
    return query @ key.mT * scaling


def _rotary(block: Block, query: Tensor, key: Tensor, call: Call) -> Tensor:
    cos, sin = (angle.unsqueeze(1) for angle in call["position_embeddings"])  # [batch, 1, length, rotated]
    return _dot(block, _rotate(query, cos, sin), _rotate(key, cos, sin), call)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]  # less than the head's width where only a part of it is rotated
    turned, rest = heads[..., :width], heads[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, rest), dim=-1).to(heads.dtype)


def _position_bias(block: Block, query: Tensor, key: Tensor, call: Call) -> Tensor:
    scores = _dot(block, query, key, call)
    bias = call.get("position_bias")
    if bias is None and getattr(block.attention, "has_relative_attention_bias", False):
        # T5's first block makes the bias that the others are handed.
        bias = cast("Any", block.attention).compute_bias(*scores.shape[-2:], device=scores.device)
    return scores if bias is None else scores + bias


def _disentangled(block: Block, query: Tensor, key: Tensor, call: Call) -> Tensor:
    attention: Any = block.attention
    terms = 1 + sum(kind in attention.pos_att_type for kind in ("c2p", "p2c"))
    scores = query @ key.mT / math.sqrt(block.head_width * terms)
    if not attention.relative_attention:
        return scores
    # The position terms run through projections of the module itself, so its own method computes them.
    bias: Tensor = attention.disentangled_attention_bias(
        query.flatten(0, 1), key.flatten(0, 1), call.get("relative_pos"), call["rel_embeddings"], terms
    )
    return scores + bias.view_as(scores)


_RULES: dict[ScoreRule, Rule] = {
    "dot": _dot,
    "rotary": _rotary,
    "position-bias": _position_bias,
    "disentangled": _disentangled,
}


def additive_mask(block: Block, scores: Tensor, call: Call) -> Tensor | None:
    """What the block's attention adds to its scores: [batch or 1, 1, query, key], or None for nothing.

    Eager attention receives an additive mask, sdpa a boolean one or none at all with a causal flag, flash
    attention the padding alone; DeBERTa multiplies the padding mask with itself.
    """
    mask = call.get("attention_mask", call.get("mask"))
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
