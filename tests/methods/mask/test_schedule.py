"""Masks that change while they are trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slimformer.methods.mask.schedule import Scheduled
from slimformer.views import ScheduledMask, attach, uniform_scores


def dropped(view):
    return float(1 - view.binary.mean())


def test_the_sparsity_rises_in_training_and_is_whole_in_evaluation():
    view = ScheduledMask(uniform_scores((64, 64), 0.05), 0.01, start=0.05, target=0.6)
    shares = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        view.progress.fill_(progress)
        shares.append(dropped(view.train()))
        assert dropped(view.eval()) == pytest.approx(0.6, abs=1e-3)
    expected = [0.6 - 0.55 * (1 - p) ** 3 for p in (0.0, 0.25, 0.5, 1.0)]
    assert shares == pytest.approx(expected, abs=2e-3)


def test_single_weights_grow_into_groups():
    view = ScheduledMask(uniform_scores((6, 8), 0.3), 0.01, start=0.3, target=0.5, group=(1, 4))
    mixed = view.train().binary
    assert any(0 < float(part.mean()) < 1 for part in mixed.chunk(4, dim=1))
    view.progress.fill_(1.0)
    whole = view.train().binary
    assert all(float(part.mean()) in (0, 1) for part in whole.chunk(4, dim=1))
    assert torch.equal(view.eval().binary.repeat_interleave(2, 1).expand(6, 8), whole)
    means = view.scores.detach().view(6, 4, 2).mean((0, 2))
    assert view.binary.flatten().tolist() == (means > means.sort().values[1]).float().tolist()


def test_the_gradient_reaches_single_scores_through_their_group():
    linear = nn.Linear(8, 6)
    view = ScheduledMask(uniform_scores((6, 8), 0.3), 0.01, start=0.3, target=0.5, group=(1, 4))
    attach(linear, view)
    view.progress.fill_(1.0)
    linear.train()(torch.randn(3, 8)).sum().backward()
    for part in view.scores.grad.chunk(4, dim=1):
        assert torch.allclose(part, part.flatten()[0].expand_as(part))
    assert float(view.scores.grad.abs().sum()) > 0


def test_one_of_a_unit_is_always_kept():
    view = ScheduledMask(torch.tensor([[-3.0, -1.0, -2.0]]), 0.01, start=0.1)
    assert view.eval().binary.tolist() == [[0, 1, 0]]


def test_what_is_kept_follows_the_scores():
    view = ScheduledMask(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 0.01, start=0.1, target=0.5).eval()
    assert view.binary.tolist() == [[0, 0, 1, 1]]
    with torch.no_grad():
        view.scores.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
    assert view.binary.tolist() == [[1, 1, 0, 0]]


def test_a_schedule_goes_by_steps_and_not_by_the_parts_of_a_batch():
    view = ScheduledMask(torch.ones(2, 2), 0.01, start=0.1, target=0.5)

    class Head(nn.Module):
        def forward(self, **inputs):
            return type("Output", (), {"loss": torch.tensor(2.0)})

    objective = Scheduled([view], steps=4)
    for step, progress in enumerate([0, 0.25, 0.5, 0.75, 1, 1]):
        objective.begin(step)
        for _ in range(2):
            assert float(objective(Head(), {}).total) == 2
            assert float(view.progress) == pytest.approx(progress)
