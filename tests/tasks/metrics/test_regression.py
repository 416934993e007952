from __future__ import annotations

import numpy as np
import pytest

from slimformer.tasks.metrics import regression_metrics

NAMES = ("pearson", "spearman", "mean_squared_error")


def pearson(left, right):
    left, right = left - left.mean(), right - right.mean()
    return (left * right).sum() / np.sqrt((left**2).sum() * (right**2).sum())


def test_against_the_formulas():
    draw = np.random.default_rng(0)
    truth, guesses = draw.normal(size=50), draw.normal(size=50)
    measured = regression_metrics(truth, guesses, NAMES)
    ranks = [values.argsort().argsort().astype(float) for values in (truth, guesses)]
    assert measured["pearson"] == pytest.approx(pearson(truth, guesses))
    assert measured["spearman"] == pytest.approx(pearson(*ranks))
    assert measured["mean_squared_error"] == pytest.approx(
        sum((a - b) ** 2 for a, b in zip(truth, guesses, strict=True)) / 50
    )


def test_a_constant_correlates_with_nothing():
    assert regression_metrics(np.array([1.0, 2.0]), np.array([3.0, 3.0]), NAMES) == {
        "pearson": 0.0, "spearman": 0.0, "mean_squared_error": 2.5,
    }  # fmt: skip
