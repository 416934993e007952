"""Which tokens a token sees, for losses over maps of tokens against tokens."""

from __future__ import annotations

import torch
from torch import Tensor


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
