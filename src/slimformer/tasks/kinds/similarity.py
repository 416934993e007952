"""Pairs of texts with a number each, judged by the embeddings of a bare encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.features import Features
from slimformer.tasks.kinds.classification import text_features
from slimformer.tasks.kinds.regression import Regression
from slimformer.tasks.metrics.regression import regression_metrics
from slimformer.tasks.splits import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.tasks.columns import Columns
    from slimformer.tasks.kinds.kind import Rename
    from slimformer.tasks.readers import Row
    from slimformer.tasks.splits import Example


class Similarity(Regression):
    """How well the cosine of two texts' embeddings orders the pairs as people do.

    Nothing is trained. The features hold the first text of every pair and then every second one.
    """

    name = "similarity"
    head = "AutoModel"
    metrics = ("spearman", "pearson")

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One example with two texts."""
        if len(columns.text) != 2:
            raise DataError(
                f"{row.at()}: similarity is between two texts, and the text columns are `{', '.join(columns.text)}`; "
                "name two with text_column"
            )
        return super().parse(row, columns, rename)

    def config_kwargs(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """Nothing: there is no head."""
        return {}

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise all texts one by one."""
        sides = [Split([{"text": example[side]} for example in split], split.origins) for side in ("text", "text_pair")]
        return Features([item for side in sides for item in text_features(side, processor, max_length, label=False)])

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare the cosines with the truth."""
        vectors = np.asarray(predictions, dtype=np.float64)
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        first, second = unit[: len(split)], unit[len(split) :]
        truth = np.array([example["label"] for example in split])
        return regression_metrics(truth, (first * second).sum(axis=1), metrics)
