"""How good a model is on a split, how sure that is, and what it gets right class by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from slimformer.inference.runners import Array
    from slimformer.tasks import TaskData
    from slimformer.tasks.features import Features
    from slimformer.tasks.metrics import ClassScores

#: How often rows are drawn again for an interval.
RESAMPLES = 400
#: What lies outside an interval, half of it on each side.
OUTSIDE = 0.05


@dataclass(frozen=True)
class Quality:
    """What a model is worth on a split.

    Args:
        metrics: As measured, the one that chooses between models first.
        resampled: That metric on rows drawn again, as often as `draws` told; None where a row does not count by itself.
        classes: What is right label by label, where there are labels.
    """

    metrics: dict[str, float]
    resampled: Array | None
    classes: ClassScores | None

    @property
    def primary(self) -> float:
        """The metric that chooses between models."""
        return next(iter(self.metrics.values()))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where that metric lies in 95 of 100 samples of as many rows."""
        return None if self.resampled is None else percentile_interval(self.resampled)

    def minus(self, other: Quality) -> tuple[float, float] | None:
        """Where the difference to another model lies, both measured on the same draws of rows."""
        if self.resampled is None or other.resampled is None:
            return None
        return percentile_interval(self.resampled - other.resampled)


def percentile_interval(values: Array) -> tuple[float, float]:
    """The interval that leaves out the same share of the values at both ends."""
    low, high = np.quantile(values, [OUTSIDE / 2, 1 - OUTSIDE / 2])
    return float(low), float(high)


def draw_rows(rows: int, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """Rows of samples with replacement, [resamples, rows]; one set of them serves all models, so they compare in pairs.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3 (percentile interval).
    """
    drawn: Array = np.random.default_rng(seed).integers(0, rows, (resamples, rows))
    return drawn


def measure_quality(data: TaskData, split: str, features: Features, predictions: Any, draws: Array) -> Quality:
    """Measure what a model gave for a split.

    Args:
        data: The task's data.
        split: Which split.
        features: What `data.prepare` gave for it.
        predictions: What the model gave for each item.
        draws: Rows to measure again on, from `draw_rows`.
    """
    metrics = data.compute_metrics(split, features, predictions)
    kind, examples, labels = data.kind, data[split], data.labels
    name = next(iter(metrics))
    resampled = None
    if kind.items_of_row and len(features) == kind.items_of_row * len(examples):

        def score(rows: list[int]) -> float:
            items = [row + part * len(examples) for part in range(kind.items_of_row) for row in rows]
            taken = examples.take(rows), features.take(items), np.asarray(predictions)[items]
            return kind.score(*taken, labels, (name,))[name]

        resampled = np.array([score(rows.tolist()) for rows in draws])
    return Quality(metrics, resampled, kind.by_class(examples, features, predictions, labels))
