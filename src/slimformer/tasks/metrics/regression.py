"""Pearson's and Spearman's correlation, and the mean squared error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.tasks.metrics.choosing import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def regression_metrics(truth: NDArray[Any], predicted: NDArray[Any], metrics: Sequence[str]) -> dict[str, float]:
    """Measure predicted numbers; a correlation with a constant is 0 here, where mathematics leaves it undefined."""
    from scipy.stats import pearsonr, spearmanr  # type: ignore[import-untyped]

    flat = len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(predicted) == 0
    known: dict[str, Callable[[], float]] = {
        "pearson": lambda: 0.0 if flat else pearsonr(truth, predicted).statistic,
        "spearman": lambda: 0.0 if flat else spearmanr(truth, predicted).statistic,
        "mean_squared_error": lambda: np.mean((truth - predicted) ** 2),
    }
    return chosen(known, metrics)
