"""What a model gets right class by class: precision, recall and which class is taken for which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class ClassScores:
    """Scores of each label.

    Args:
        labels: The labels; all else is in their order.
        precision: Of what was called so, the share that is; 0 where nothing was.
        recall: Of what is so, the share that was called so; 0 where nothing is.
        f1: The harmonic mean of the two.
        support: How many there are.
        confusion: How many of a label (row) were taken for another (column); None where one may have several.
    """

    labels: list[str]
    precision: list[float]
    recall: list[float]
    f1: list[float]
    support: list[int]
    confusion: list[list[int]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The scores as JSON types."""
        return dict(vars(self))

    @classmethod
    def of_counts(
        cls,
        labels: Sequence[str],
        right: NDArray[Any],
        called: NDArray[Any],
        there: NDArray[Any],
        confusion: NDArray[Any] | None = None,
    ) -> ClassScores:
        """Scores from how often each label was rightly given, was given, and is there: [labels] each."""
        precision, recall = right / np.maximum(called, 1), right / np.maximum(there, 1)
        return cls(
            list(labels),
            precision.tolist(),
            recall.tolist(),
            (2 * right / np.maximum(called + there, 1)).tolist(),
            there.tolist(),
            None if confusion is None else confusion.tolist(),
        )


def score_classes(truth: NDArray[Any], predicted: NDArray[Any], labels: Sequence[str]) -> ClassScores:
    """Scores of labels that exclude each other.

    Args:
        truth: Number of the label, [rows].
        predicted: Number of the label given, [rows].
        labels: Their names.
    """
    confusion = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    return ClassScores.of_counts(labels, confusion.diagonal(), confusion.sum(0), confusion.sum(1), confusion)


def score_labels(truth: NDArray[Any], predicted: NDArray[Any], labels: Sequence[str]) -> ClassScores:
    """Scores of labels of which a row may have any number.

    Args:
        truth: 1 where a row has a label, [rows, labels].
        predicted: 1 where it was given one, [rows, labels].
        labels: Their names.
    """
    return ClassScores.of_counts(labels, (truth * predicted).sum(0), predicted.sum(0), truth.sum(0))
