"""F1, exact match and ranking of several labels a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.tasks.metrics.choosing import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def multi_label_metrics(
    truth: NDArray[Any], scores: NDArray[Any], threshold: float, metrics: Sequence[str]
) -> dict[str, float]:
    """Measure the probabilities of labels, [texts, labels].

    `f1_micro` counts all decisions alike, `f1_macro` all labels; `accuracy` is the share of texts whose labels are all
    right; `lrap` is the label ranking average precision, which needs no threshold: how many of the labels ranked at
    least as high as a true one are true themselves, 1 for a text without labels.
    """
    from sklearn.metrics import (  # type: ignore[import-untyped]
        accuracy_score,
        f1_score,
        label_ranking_average_precision_score,
    )

    predicted = (scores >= threshold).astype(int)
    known: dict[str, Callable[[], float]] = {
        "f1_micro": lambda: f1_score(truth, predicted, average="micro", zero_division=0),
        "f1_macro": lambda: f1_score(truth, predicted, average="macro", zero_division=0),
        "accuracy": lambda: accuracy_score(truth, predicted),
        "lrap": lambda: label_ranking_average_precision_score(truth, scores),
    }
    return chosen(known, metrics)
