"""One vector from the outputs of a model: pooling over tokens, in torch or NumPy, and scaling to length 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


def pool(hidden: Any, attention_mask: Any, ways: str | Sequence[str] = "mean") -> Any:
    """One vector for each text, in NumPy or in torch, whichever the hidden states are in.

    Args:
        hidden: Hidden states, [batch, length, width].
        attention_mask: 1 for tokens that count, [batch, length]; None where all do.
        ways: A name of `FLAGS`, or several, whose vectors are joined.

    Returns:
        [batch, width · ways].
    """
    ways = (ways,) if isinstance(ways, str) else ways
    if isinstance(hidden, np.ndarray):
        mask = np.ones(hidden.shape[:2], hidden.dtype) if attention_mask is None else attention_mask
        return np.concatenate([_pool_numpy(hidden, np.asarray(mask), way) for way in ways], axis=-1)
    import torch

    return torch.cat([_pool_torch(hidden, attention_mask, way) for way in ways], dim=-1)


def normalize(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Vectors scaled to length 1; one of zeros stays as it is."""
    scaled: np.ndarray[Any, Any] = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return scaled


def _pool_torch(hidden: Any, mask: Any, way: str) -> Any:
    import torch

    if mask is None:
        if way == "mean":
            return hidden.mean(dim=1)
        mask = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
    if way in ("cls", "lasttoken"):
        # Padding may stand on either side.
        place = mask.argmax(dim=1) if way == "cls" else mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
        return hidden[torch.arange(len(hidden), device=hidden.device), place]
    if way == "max":
        return hidden.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(dim=1)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    if way == "weightedmean":
        weights = weights * mask.cumsum(dim=1).unsqueeze(-1).to(hidden.dtype)
    total = weights.sum(dim=1).clamp(min=1)
    return (hidden * weights).sum(dim=1) / (total.sqrt() if way == "mean_sqrt_len_tokens" else total)


def _pool_numpy(hidden: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], way: str) -> Any:
    if way in ("cls", "lasttoken"):
        place = mask.argmax(1) if way == "cls" else mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
        return hidden[np.arange(len(hidden)), place]
    if way == "max":
        return np.where(mask[..., None] == 0, -np.inf, hidden).max(1).astype(hidden.dtype)
    weights = mask[..., None].astype(hidden.dtype)
    if way == "weightedmean":
        weights = weights * mask.cumsum(1)[..., None].astype(hidden.dtype)
    total = np.maximum(weights.sum(1), 1)
    return (hidden * weights).sum(1) / (np.sqrt(total) if way == "mean_sqrt_len_tokens" else total)
