"""Embeddings learned from each other: items of a batch that belong together, and pairs that people have ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from slimformer.errors import ObjectiveError

if TYPE_CHECKING:
    from torch import Tensor


def contrastive_loss(embeddings: Tensor, groups: Tensor, temperature: float = 0.05) -> Tensor:
    """Cross-entropy of finding the items of one's own group among all others of the batch.

    With z the embeddings scaled to length 1, P(i) the other items of i's group and A(i) all items but i:

        -1/|P(i)| · Σ_{p ∈ P(i)} log( exp(z_i·z_p/τ) / Σ_{a ∈ A(i)} exp(z_i·z_a/τ) ),  mean over items with a P(i)

    That is supervised contrastive learning (arXiv 2004.11362, equation 2). Where every group is a pair it is InfoNCE
    with in-batch negatives (arXiv 1807.03748, equation 4) in the form of SimCLR (arXiv 2002.05709, equation 1).

    Args:
        embeddings: [items, width].
        groups: A number for each item, equal for those that belong together: [items].
        temperature: τ.

    Example:
        >>> contrastive_loss(torch.cat([queries, passages]), torch.arange(16).repeat(2))
    """
    if temperature <= 0:
        raise ObjectiveError(f"the temperature is {temperature:g}; give a number above 0")
    unit = functional.normalize(embeddings.float(), dim=-1)
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    chances = (unit @ unit.T / temperature).masked_fill(itself, -torch.inf).log_softmax(-1)  # [items, items]
    positive = (groups[:, None] == groups[None, :]) & ~itself
    counts = positive.sum(-1)
    paired = counts > 0
    if not paired.any():
        return embeddings.sum() * 0  # a part of a batch may have no two items of a group
    # Masked before the sum, as 0 times the infinity on the diagonal is no number.
    sums = chances.masked_fill(~positive, 0).sum(-1)
    return -(sums[paired] / counts[paired]).mean()


def ranked_pairs_loss(first: Tensor, second: Tensor, scores: Tensor, temperature: float = 0.05) -> Tensor:
    """How far the cosines of pairs are from the order that people gave the pairs: CoSENT.

        log(1 + Σ_{i, j: s_i > s_j} exp((cos_j - cos_i)/τ))

    The scale of the scores does not matter. AnglE (arXiv 2309.12871, equation 1) and sentence-transformers'
    `CoSENTLoss` have the same with 1/τ = 20.

    Args:
        first: Embeddings of the first of each pair: [pairs, width].
        second: Those of the second.
        scores: How alike the two are: [pairs].
        temperature: τ.

    Example:
        >>> ranked_pairs_loss(first, second, torch.tensor([0.0, 2.5, 5.0]))
    """
    if temperature <= 0:
        raise ObjectiveError(f"the temperature is {temperature:g}; give a number above 0")
    cosines = functional.cosine_similarity(first.float(), second.float(), dim=-1) / temperature
    gaps = cosines[None, :] - cosines[:, None]  # [i, j]: cos_j - cos_i
    wrong = gaps[scores[:, None] > scores[None, :]]
    # The zero is taken of the cosines, so that a batch without two ranks has a gradient too.
    return torch.cat([cosines[:1] * 0, wrong]).logsumexp(0)
