"""Losses of embeddings against slow versions, sum by sum."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from slimformer.errors import ObjectiveError
from slimformer.objectives.losses import contrastive_loss, ranked_pairs_loss


def slow_contrastive(embeddings, groups, temperature):
    """Equation 2 of arXiv 2004.11362, item by item."""
    unit = [vector / vector.norm() for vector in embeddings.double()]
    losses = []
    for i, anchor in enumerate(unit):
        others = [a for a in range(len(unit)) if a != i]
        positives = [p for p in others if groups[p] == groups[i]]
        if not positives:
            continue
        total = sum(math.exp(float(anchor @ unit[a]) / temperature) for a in others)
        losses.append(-sum(float(anchor @ unit[p]) / temperature - math.log(total) for p in positives) / len(positives))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("groups", [[0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 2], [4, 4, 4, 4, 4, 4]])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_contrast_is_the_sum_of_the_paper(groups, temperature):
    embeddings = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    loss = contrastive_loss(embeddings, torch.tensor(groups), temperature)
    assert float(loss) == pytest.approx(slow_contrastive(embeddings, groups, temperature), rel=1e-5)


def test_of_pairs_it_is_the_cross_entropy_with_in_batch_negatives():
    """InfoNCE: each item chooses its partner among all others."""
    embeddings = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    unit = functional.normalize(embeddings, dim=-1)
    logits = (unit @ unit.T / 0.1).fill_diagonal_(-torch.inf)
    partners = torch.arange(8).roll(4)
    expected = functional.cross_entropy(logits, partners)
    assert float(contrastive_loss(embeddings, torch.arange(4).repeat(2), 0.1)) == pytest.approx(float(expected))


def test_a_batch_without_partners_has_no_loss_and_a_gradient():
    embeddings = torch.randn(3, 4, requires_grad=True)
    loss = contrastive_loss(embeddings, torch.arange(3))
    loss.backward()
    assert float(loss) == 0
    assert torch.equal(embeddings.grad, torch.zeros(3, 4))


def test_gradients_are_numbers():
    embeddings = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    contrastive_loss(embeddings, torch.tensor([0, 0, 1, 1, 2, 3])).backward()
    assert embeddings.grad.isfinite().all()
    assert embeddings.grad.abs().sum() > 0


def test_ranks_are_the_sum_over_pairs_of_pairs():
    generator = torch.Generator().manual_seed(3)
    first, second = torch.randn(5, 4, generator=generator), torch.randn(5, 4, generator=generator)
    scores = [0.0, 2.5, 5.0, 2.5, 1.0]
    cosines = [float(functional.cosine_similarity(a, b, dim=0)) for a, b in zip(first, second, strict=True)]
    total = 1.0
    for i in range(5):
        for j in range(5):
            if scores[i] > scores[j]:
                total += math.exp((cosines[j] - cosines[i]) / 0.2)
    loss = ranked_pairs_loss(first, second, torch.tensor(scores), 0.2)
    assert float(loss) == pytest.approx(math.log(total), rel=1e-5)
    scaled = ranked_pairs_loss(first, second, torch.tensor(scores) * 100, 0.2)
    assert torch.equal(loss, scaled)


def test_pairs_of_one_rank_have_no_loss_and_a_gradient():
    first = torch.randn(2, 4, requires_grad=True)
    loss = ranked_pairs_loss(first, torch.randn(2, 4), torch.ones(2))
    loss.backward()
    assert float(loss) == 0
    assert torch.equal(first.grad, torch.zeros(2, 4))


def test_a_temperature_that_cannot_be_is_refused():
    with pytest.raises(ObjectiveError, match="temperature is 0; give a number above 0"):
        contrastive_loss(torch.randn(2, 3), torch.zeros(2), 0)
    with pytest.raises(ObjectiveError, match="temperature is -1"):
        ranked_pairs_loss(torch.randn(2, 3), torch.randn(2, 3), torch.zeros(2), -1)
