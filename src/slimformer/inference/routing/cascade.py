"""Thresholds of a cascade for a compute or an accuracy, and what it gains over chance.

Everything here is computed from what every size says of some held-out rows, so it is plain NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import ConfigError
from slimformer.inference.routing.routes import Cascade

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slimformer.inference.routing.routes import Confidence
    from slimformer.inference.runners import Array

#: Cascades tried for each choice of sizes; thresholds lie on an even grid of quantiles.
TRIALS = 8_000
#: Thresholds tried for one size at most.
STEPS = 200
#: Rounding of a mean of costs.
ROUNDING = 1e-9
#: Resamples of the paired bootstrap.
RESAMPLES = 2_000


@dataclass(frozen=True)
class Outcomes:
    """What every size makes of the same rows.

    Args:
        sizes: Their names, smallest first.
        costs: FLOPs of each, of the largest's: [sizes].
        confidence: How sure each is: [sizes, rows].
        correct: 1 where each is right, else 0: [sizes, rows].
    """

    sizes: tuple[str, ...]
    costs: Array
    confidence: Array
    correct: Array

    def of(self, numbers: Sequence[int]) -> Outcomes:
        """The same of some sizes only."""
        chosen = list(numbers)
        names = tuple(self.sizes[number] for number in chosen)
        return Outcomes(names, self.costs[chosen], self.confidence[chosen], self.correct[chosen])

    def cascade(self, thresholds: Sequence[float]) -> Array:
        """The number of the size that answers each row: the first that is sure of it, or the last."""
        # The last size is sure of whatever reaches it.
        limits = np.append(np.asarray(thresholds, dtype=np.float64), -np.inf)
        first: Array = (self.confidence >= limits[:, None]).argmax(0)
        return first

    def score(self, thresholds: Sequence[float]) -> tuple[float, float]:
        """Accuracy and mean cost of a cascade."""
        routed = self.cascade(thresholds)
        right = self.correct[routed, np.arange(len(routed))]
        return float(right.mean()), float(np.cumsum(self.costs)[routed].mean())


def calibrate(
    outcomes: Outcomes, *, compute: float | None = None, accuracy: float | None = None, by: Confidence = "margin"
) -> Cascade:
    """The cascade that is most often right within a compute, or the cheapest that is right often enough.

    Any of the sizes may be left out of it.

    Args:
        outcomes: What every size makes of held-out rows.
        compute: Mean FLOPs of an answer at most, of the largest size's.
        accuracy: Share of the rows to be right at least; give this or `compute`.
        by: What the outcomes' confidence is.
    """
    if (compute is None) == (accuracy is None):
        raise ConfigError("a cascade is calibrated for a compute or for an accuracy; give one of them")
    best: tuple[tuple[float, float], tuple[int, ...], tuple[float, ...]] | None = None
    reached = []
    for numbers in _choices(len(outcomes.sizes)):
        part = outcomes.of(numbers)
        for thresholds in _grid(part.confidence[:-1]):
            right, cost = part.score(thresholds)
            reached.append((right, cost))
            fits = cost <= compute if compute is not None else right >= (accuracy or 0)
            rank = (-right, cost) if compute is not None else (cost, -right)
            if fits and (best is None or rank < best[0]):
                best = rank, numbers, thresholds
    if best is None:
        least, most = min(cost for _, cost in reached), max(right for right, _ in reached)
        raise ConfigError(
            f"no cascade keeps to a compute of {compute:g}: the smallest size takes {least:.3f}; allow at least that"
            if compute is not None
            else f"no cascade is right as often as {accuracy:g}: the best is {most:.4f}; ask for that or less"
        )
    _, numbers, thresholds = best
    chosen = outcomes.of(numbers)
    return Cascade(
        sizes=list(chosen.sizes), costs=chosen.costs.tolist(), thresholds=[float(t) for t in thresholds], confidence=by
    )


def compare_with_random(
    outcomes: Outcomes, right: Array, spent: Array, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Compare a route with the best random choice of sizes that costs the same: accuracy and the difference.

    Random routing sends each request to one of two sizes by lot; which two, and with what chances, is what does best
    on the very rows it is judged by, so the comparison leans towards it. The interval is that of a paired bootstrap
    over rows: route and random routing are resampled together.

    Args:
        outcomes: What every size makes of the rows.
        right: Whether the route is right: [rows].
        spent: What it cost, of the largest size's: [rows].
        resamples: How often rows are drawn again.
        seed: Of the draws.
    """
    columns = np.concatenate([outcomes.correct, [right, spent]]).T.astype(np.float64)  # [rows, sizes + 2]
    rows = len(columns)
    draws = np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), size=resamples) / rows
    *sizes, routed, cost = (draws @ columns).T
    gains = routed - _random_accuracy(np.stack(sizes), outcomes.costs, cost)
    *alone, accuracy, compute = columns.mean(0)
    baseline = float(_random_accuracy(np.array(alone)[:, None], outcomes.costs, np.array([compute]))[0])
    return {
        "accuracy": float(accuracy),
        "compute": float(compute),
        "random_accuracy": baseline,
        "difference": float(accuracy) - baseline,
        "interval": [float(limit) for limit in np.quantile(gains, [0.025, 0.975])],
    }


def _random_accuracy(correct: Array, costs: Array, compute: Array) -> Array:
    """The best accuracy of sizes drawn by lot within a mean cost: [draws].

    Args:
        correct: Accuracy of each size: [sizes, draws].
        costs: Cost of each: [sizes].
        compute: Mean cost allowed: [draws].
    """
    compute = np.maximum(compute, costs.min()) + ROUNDING
    # A mixture of two sizes is the best there is: the upper hull of the points (cost, accuracy).
    best: Array = np.where(costs[:, None] <= compute, correct, -np.inf).max(0)
    for small, large in combinations(range(len(costs)), 2):
        low, high = sorted((small, large), key=lambda number: costs[number])
        if costs[low] == costs[high]:
            continue
        share = (compute - costs[low]) / (costs[high] - costs[low])
        mixed = correct[low] + share * (correct[high] - correct[low])
        best = np.maximum(best, np.where((share >= 0) & (share <= 1), mixed, -np.inf))
    return best


def _choices(count: int) -> Iterable[tuple[int, ...]]:
    return (numbers for many in range(1, count + 1) for numbers in combinations(range(count), many))


def _grid(confidence: Array) -> Iterable[tuple[float, ...]]:
    """Thresholds to try, each halfway between two confidences that were seen, so that rounding moves no row."""
    if not len(confidence):
        return [()]
    steps = min(STEPS, int(TRIALS ** (1 / len(confidence))))
    columns = []
    for row in confidence:
        seen = np.unique(row)
        between = np.concatenate([[seen[0] - 1e-6], (seen[:-1] + seen[1:]) / 2])
        columns.append(np.unique(np.quantile(between, np.linspace(0, 1, steps), method="nearest")).tolist())
    return product(*columns)
