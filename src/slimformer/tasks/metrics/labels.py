"""Predicted classes, labels and tags."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from slimformer.tasks.metrics.chosen import chosen

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
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

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


def multi_label_metrics(
    truth: NDArray[Any], scores: NDArray[Any], threshold: float, metrics: Sequence[str]
) -> dict[str, float]:
    """Measure the probabilities of labels, [texts, labels].

    `f1_micro` counts all decisions alike, `f1_macro` all labels; `accuracy` is the share of texts whose labels are all
    right; `lrap` is the label ranking average precision, which needs no threshold: how many of the labels ranked at
    least as high as a true one are true themselves, 1 for a text without labels.
    """
    from sklearn.metrics import (
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


def tagging_metrics(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str | None]], metrics: Sequence[str]
) -> dict[str, float]:
    """Measure predicted tags, None where a word got none.

    `f1`, `precision` and `recall` are seqeval's micro averages over entities, with a word without a tag
    taken as outside; in `accuracy` such a word is wrong.
    """
    from seqeval.metrics import f1_score, precision_score, recall_score

    # Tags such as NOUN are no entities of a scheme, and are not meant to be; the library writes each to the terminal.
    warnings.filterwarnings("ignore", message=".* seems not to be NE tag", category=UserWarning)
    entities = [["O" if tag is None else tag for tag in tags] for tags in predicted]
    gold = [list(tags) for tags in truth]
    known: dict[str, Callable[[], float]] = {
        "f1": lambda: f1_score(gold, entities, zero_division=0),
        "precision": lambda: precision_score(gold, entities, zero_division=0),
        "recall": lambda: recall_score(gold, entities, zero_division=0),
        "accuracy": lambda: _accuracy(truth, predicted),
    }
    return chosen(known, metrics)


def _accuracy(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str | None]]) -> float:
    pairs = [pair for tags, guesses in zip(truth, predicted, strict=True) for pair in zip(tags, guesses, strict=True)]
    return sum(tag == guess for tag, guess in pairs) / len(pairs)
