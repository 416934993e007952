"""Calibrated thresholds and the comparison with random routing, against brute force and against known answers."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from slimformer.errors import ConfigError
from slimformer.inference.routing import Outcomes, calibrate, compare_with_random

COSTS = np.array([0.3, 0.5, 1.0])


def outcomes(rows=400, seed=0, telling=True):
    """Sizes that know more rows the larger they are; where `telling`, they are surer of what they know."""
    draw = np.random.default_rng(seed)
    hardness = draw.random(rows)
    confidence, correct = [], []
    for skill in (0.6, 0.75, 0.9):
        knows = hardness < skill
        correct.append(draw.random(rows) < np.where(knows, 0.97, 0.4))
        confidence.append(np.where(knows & telling, 0.8, 0.4) + 0.2 * draw.random(rows))
    return Outcomes(("S", "M", "XL"), COSTS, np.stack(confidence), np.stack(correct))


def slow_cascade(given, numbers, thresholds):
    """Row by row: ask the sizes in turn, pay for each."""
    right = cost = 0.0
    rows = given.correct.shape[1]
    for row in range(rows):
        for place, number in enumerate(numbers):
            cost += given.costs[number]
            last = place == len(numbers) - 1
            if last or given.confidence[number, row] >= thresholds[place]:
                right += given.correct[number, row]
                break
    return right / rows, cost / rows


def test_a_cascade_is_scored_as_it_runs():
    given = outcomes(60)
    for numbers in ((0,), (2,), (0, 2), (0, 1, 2)):
        thresholds = [0.7, 0.8][: len(numbers) - 1]
        assert given.of(numbers).score(thresholds) == pytest.approx(slow_cascade(given, numbers, thresholds))


@pytest.mark.parametrize("limit", [{"compute": 0.5}, {"compute": 0.8}, {"accuracy": 0.7}])
def test_no_cascade_on_the_rows_does_better(limit):
    given = outcomes(14, seed=3)
    chosen = calibrate(given, **limit)
    right, cost = given.of([given.sizes.index(size) for size in chosen.sizes]).score(chosen.thresholds)
    best = []
    for many in (1, 2, 3):
        for numbers in combinations(range(3), many):
            levels = [[-1, *(np.sort(given.confidence[number]) + 1e-9)[:-1]] for number in numbers[:-1]]
            for thresholds in product(*levels):
                accuracy, compute = slow_cascade(given, numbers, thresholds)
                if "compute" in limit and compute <= limit["compute"]:
                    best.append((-accuracy, compute))
                if "accuracy" in limit and accuracy >= limit["accuracy"]:
                    best.append((compute, -accuracy))
    expected = min(best)
    assert ((-right, cost) if "compute" in limit else (cost, -right)) == pytest.approx(expected)
    assert chosen.costs == [given.costs[given.sizes.index(size)] for size in chosen.sizes]


def test_what_no_cascade_reaches_is_refused():
    with pytest.raises(ConfigError, match=r"compute of 0\.2: the smallest size takes 0\.300"):
        calibrate(outcomes(), compute=0.2)
    with pytest.raises(ConfigError, match="right as often as 1"):
        calibrate(outcomes(), accuracy=1.0)
    with pytest.raises(ConfigError, match="give one of them"):
        calibrate(outcomes(), accuracy=0.5, compute=0.5)


def slow_random(given, compute):
    """The best mixture of two sizes on a fine grid of chances."""
    accuracies = given.correct.mean(1)
    best = -1.0
    for low, high in product(range(3), repeat=2):
        for share in np.linspace(0, 1, 2001):
            if (1 - share) * COSTS[low] + share * COSTS[high] <= compute + 1e-12:
                best = max(best, (1 - share) * accuracies[low] + share * accuracies[high])
    return best


@pytest.mark.parametrize("compute", [0.3, 0.42, 0.5, 0.77, 1.2])
def test_random_routing_is_the_best_mixture_of_that_cost(compute):
    given = outcomes()
    rows = given.correct.shape[1]
    result = compare_with_random(given, given.correct[0], np.full(rows, compute), resamples=10)
    assert result["random_accuracy"] == pytest.approx(slow_random(given, compute), abs=1e-3)
    assert result["compute"] == pytest.approx(compute)
    assert result["accuracy"] == pytest.approx(given.correct[0].mean())


def gain(telling, seed):
    """What a cascade calibrated on some rows gains on others."""
    chosen = calibrate(outcomes(400, seed=seed, telling=telling), compute=0.6)
    fresh = outcomes(1000, seed=seed + 1, telling=telling)
    used = fresh.of([fresh.sizes.index(size) for size in chosen.sizes])
    routed = used.cascade(chosen.thresholds)
    right = used.correct[routed, np.arange(len(routed))]
    return compare_with_random(fresh, right, chosen.spent(routed), resamples=400)


def test_confidence_that_tells_beats_chance_and_one_that_does_not_does_not():
    telling = gain(True, 0)
    assert telling["interval"][0] > 0
    assert telling["difference"] == pytest.approx(telling["accuracy"] - telling["random_accuracy"])
    assert gain(False, 0)["interval"][0] <= 0


def test_the_interval_is_that_of_resampled_rows():
    given = outcomes(80)
    right, spent = given.correct[1], np.full(80, 0.5)
    result = compare_with_random(given, right, spent, resamples=3000)
    draw = np.random.default_rng(9)
    gains = []
    for _ in range(1500):
        rows = draw.integers(0, 80, 80)
        again = Outcomes(given.sizes, given.costs, given.confidence[:, rows], given.correct[:, rows])
        accuracies = again.correct.mean(1)
        mixed = accuracies[0] + (0.5 - 0.3) / 0.7 * (accuracies[2] - accuracies[0])
        gains.append(accuracies[1] - max(accuracies[0], accuracies[1], mixed))
    assert result["interval"] == pytest.approx(np.quantile(gains, [0.025, 0.975]).tolist(), abs=0.015)
