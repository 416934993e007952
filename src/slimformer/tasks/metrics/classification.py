"""Accuracy, F1 and Matthews' correlation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.tasks.metrics.choosing import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def classification_metrics(
    truth: NDArray[Any], predicted: NDArray[Any], classes: int, metrics: Sequence[str]
) -> dict[str, float]:
    """Measure predicted class numbers.

    `f1` is that of class 1, as GLUE has it; `f1_macro` averages over all classes of the head, so one that
    is never right counts 0; `f1_micro` of single labels equals the accuracy.
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef  # type: ignore[import-untyped]

    known: dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy_score(truth, predicted),
        "f1": lambda: f1_score(truth == 1, predicted == 1, zero_division=0),
        "f1_macro": lambda: f1_score(truth, predicted, labels=range(classes), average="macro", zero_division=0),
        "f1_micro": lambda: f1_score(truth, predicted, labels=range(classes), average="micro", zero_division=0),
        # Of a single class sklearn warns before it says 0.
        "matthews": lambda: (
            0.0 if len({*truth.tolist(), *predicted.tolist()}) < 2 else matthews_corrcoef(truth, predicted)
        ),
    }
    return chosen(known, metrics)
