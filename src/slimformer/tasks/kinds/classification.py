"""Texts, or pairs of them, with one label each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from slimformer.tasks.columns import LABELS, Columns, guess_one, label_text
from slimformer.tasks.kinds.answers import class_answers, scored_line
from slimformer.tasks.kinds.kind import Answer, Arrays, Kind, Rename
from slimformer.tasks.kinds.texts import text_features, texts_in, texts_of
from slimformer.tasks.metrics import ClassScores, classification_metrics, score_classes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig

    from slimformer.tasks.features import Features
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split


class OneLabel(Kind):
    """Whatever has one of several labels, be it a text or an image."""

    metrics = ("accuracy", "f1_macro", "f1_micro", "matthews")
    linear_probe = "classes"
    chooses = True

    def config_kwargs(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """What the head has to be told."""
        return {**super().config_kwargs(labels), "problem_type": "single_label_classification"}

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare with the truth."""
        return classification_metrics(_truth(split), np.asarray(predictions).argmax(-1), len(labels or ()), metrics)

    def by_class(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None
    ) -> ClassScores | None:
        """Each label, and which are mistaken for which."""
        return score_classes(_truth(split), np.asarray(predictions).argmax(-1), list(labels or ()))

    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """The likeliest label, and the probability of each."""
        return class_answers(outputs["logits"], labels)

    def line(self, answer: Answer) -> str:
        """The likeliest labels."""
        return scored_line(answer["scores"])


class Classification(OneLabel):
    """Text classification; two text columns make a pair."""

    name = "classification"
    head = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"

    @classmethod
    def of_model(cls, architecture: str, config: PretrainedConfig | None = None) -> Self | None:
        """A head for sequences that chooses one of several classes."""
        kind = super().of_model(architecture, config)
        if kind is None or config is None:
            return kind
        return kind if kind.means_the_same(config) else None

    def means_the_same(self, config: PretrainedConfig) -> bool:
        """Whether a head chooses one of several classes."""
        return config.problem_type in (None, "single_label_classification") and config.num_labels != 1

    def guess_label(self, rows: SplitRows) -> str:
        """The column of the label."""
        return guess_one(rows, LABELS, "label")

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One example."""
        assert columns.label is not None
        label = rename(label_text(row.values[columns.label], row, columns.label))
        return [{**texts_of(row, columns), "label": label}]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise the texts."""
        return text_features(split, processor, max_length)

    def encode(self, request: Any) -> Example:
        """A text or a pair."""
        return {**texts_in(self, request), "label": 0}


def _truth(split: Split) -> np.ndarray[Any, Any]:
    return np.array([example["label"] for example in split])
