"""Entity F1 and word accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.tasks.metrics.choosing import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def tagging_metrics(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str | None]], metrics: Sequence[str]
) -> dict[str, float]:
    """Measure predicted tags, None where a word got none.

    `f1`, `precision` and `recall` are seqeval's micro averages over entities, with a word without a tag
    taken as outside; in `accuracy` such a word is wrong.
    """
    from seqeval.metrics import f1_score, precision_score, recall_score  # type: ignore[import-untyped]

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
