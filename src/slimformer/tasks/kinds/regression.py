"""Texts, or pairs of them, with one number each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slimformer.tasks.columns import SCORES, Columns, guess_one
from slimformer.tasks.kinds.classification import text_features, texts_of
from slimformer.tasks.kinds.kind import Kind, Rename
from slimformer.tasks.labels import number
from slimformer.tasks.metrics.regression import regression_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.tasks.features import Features
    from slimformer.tasks.preset import KindName
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split


class Regression(Kind):
    """Predicting a number for a text or a pair."""

    name: ClassVar[KindName] = "regression"
    head = "AutoModelForSequenceClassification"
    metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "mean_squared_error")
    labelled = False

    def guess_label(self, found: SplitRows) -> str:
        """The column of the label."""
        return guess_one(found, SCORES, "number")

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One example."""
        assert columns.label is not None
        return [{**texts_of(row, columns), "label": number(row.values[columns.label], row, columns.label)}]

    def config_kwargs(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """What the head has to be told."""
        return {"num_labels": 1, "problem_type": "regression"}

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise the texts."""
        return text_features(split, processor, max_length)

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare with the truth."""
        truth = np.array([example["label"] for example in split])
        return regression_metrics(truth, np.asarray(predictions).reshape(len(split)), metrics)
