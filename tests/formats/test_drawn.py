"""Weights that every machine draws alike."""

from __future__ import annotations

import torch

from slimformer.formats.drawn import draw


def splitmix(state):
    mask = 2**64 - 1
    state = state * 0x9E3779B97F4A7C15 & mask
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
    state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
    return state ^ state >> 31


def test_weights_are_those_of_the_definition():
    expected = [((splitmix((7 << 32) + place) >> 40) * 2 + 1 - 2**24) / 2**24 for place in range(6)]
    assert draw((2, 3), 7, 3**-0.5).flatten().tolist() == torch.tensor(expected).tolist()


def test_they_look_random():
    weights = draw((300, 400), 1, 0.02)
    assert abs(float(weights.mean())) < 2e-4
    assert abs(float(weights.std()) - 0.02) < 2e-4
    assert torch.linalg.matrix_rank(weights) == 300
    assert torch.corrcoef(torch.stack([weights.flatten(), draw((300, 400), 2, 0.02).flatten()]))[0, 1].abs() < 0.01
    assert torch.corrcoef(torch.stack([weights[:, :-1].flatten(), weights[:, 1:].flatten()]))[0, 1].abs() < 0.01
