"""Which drafted tokens stay, and which token follows them: the output is that of the verifying size alone.

`drafted` are k tokens per row, [batch, k]; the verifying size has scored them and the place after them. Both functions
return how many of them stay in each row, [batch], and tokens [batch, k + 1] of which one more than that are valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def accept_greedy(drafted: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Keep drafted tokens up to the first that is not the verifying size's best.

    Args:
        drafted: The draft, [batch, k].
        scores: Scores of the verifying size, [batch, k + 1, vocabulary].
    """
    best = scores.argmax(dim=-1)
    return _leading(drafted == best[:, :-1]), best


def accept_sampled(drafted: Tensor, proposed: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Rejection sampling (Leviathan et al., arXiv 2211.17192, algorithm 1): tokens are distributed as the target.

    A token x stays with probability min(1, p(x) / q(x)). After the first that does not, one is drawn from the
    normalized max(0, p - q); after the last of all, one from p.

    Args:
        drafted: The draft, [batch, k], drawn from `proposed`.
        proposed: Probabilities q of the drafting size, [batch, k, vocabulary].
        target: Probabilities p of the verifying size, [batch, k + 1, vocabulary].
    """
    p = target[:, :-1].gather(-1, drafted[..., None]).squeeze(-1)
    q = proposed.gather(-1, drafted[..., None]).squeeze(-1)
    accepted = _leading(torch.rand_like(q) * q < p)
    rows = torch.arange(len(drafted), device=drafted.device)
    # After the last drafted token nothing was proposed: q = 0, and the residual is p itself.
    nothing = torch.zeros_like(target[:, :1])
    at_end, proposed_there = target[rows, accepted], torch.cat([proposed, nothing], dim=1)[rows, accepted]
    residual = (at_end - proposed_there).clamp(min=0)
    # Where p and q agree to the last bit nothing is left, and nothing can have been rejected but by rounding.
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, at_end)
    following = torch.multinomial(residual, num_samples=1)
    return accepted, torch.cat([drafted, following], dim=1).scatter(1, accepted[:, None], following)


def _leading(agrees: Tensor) -> Tensor:
    """How many of each row agree before the first that does not."""
    return agrees.long().cumprod(dim=1).sum(dim=1)
