from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from slimformer.errors import DataError
from slimformer.tasks.metrics import likelihood_metrics, reduce_logits

NAMES = ("loss", "perplexity", "accuracy", "last_word_accuracy")


@pytest.mark.parametrize("causal", [True, False])
def test_against_one_token_at_a_time(causal):
    logits = torch.randn(3, 6, 11)
    labels = torch.randint(11, (3, 6))
    labels[0, :2] = labels[1, 4:] = -100
    reduced = reduce_logits(logits, labels, causal=causal)
    for row in range(3):
        losses, right = [], 0
        for position in range(6):
            label = labels[row, position]
            source = position - 1 if causal else position
            if label == -100 or source < 0:
                continue
            losses.append(cross_entropy(logits[row, source], label).item())
            right += int(logits[row, source].argmax() == label)
        assert reduced[row].tolist() == pytest.approx([sum(losses), len(losses), right], rel=1e-5)


def test_metrics_by_hand():
    measured = likelihood_metrics([[2.0, 2, 2], [4.0, 4, 1]], NAMES)
    assert measured == pytest.approx({"loss": 1.0, "perplexity": math.e, "accuracy": 0.5, "last_word_accuracy": 0.5})


def test_logits_that_were_not_reduced_are_refused():
    with pytest.raises(DataError, match=r"predictions of shape `\(2, 3, 4\)` are not reduced"):
        likelihood_metrics(torch.zeros(2, 3, 4), NAMES)
    with pytest.raises(DataError, match="no token was predicted"):
        likelihood_metrics([[0.0, 0, 0]], NAMES)
