"""Texts, or pairs of them, with one number each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from slimformer.errors import DataError, describe
from slimformer.tasks.columns import SCORES, Columns, guess_one
from slimformer.tasks.kinds.answers import Snippet
from slimformer.tasks.kinds.kind import Answer, Arrays, Kind, Rename
from slimformer.tasks.kinds.texts import text_features, texts_in, texts_of
from slimformer.tasks.metrics import regression_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig

    from slimformer.tasks.features import Features
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

#: Errors are squared in float32, so the root of its largest number, and some room.
LARGEST_NUMBER = 1e18


def number(value: Any, row: Row, column: str) -> float:
    """A regression target; anything but a finite number is an error."""
    try:
        # Python takes true for 1 and 1_000 for a thousand.
        result = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError):
        result = math.nan
    except OverflowError:
        result = LARGEST_NUMBER * 10
    if not math.isfinite(result):
        raise DataError(
            f"{row.at()}: `{describe(value)}` in column `{column}` is not a finite number; mend the row or remove it"
        )
    if abs(result) > LARGEST_NUMBER:
        raise DataError(
            f"{row.at()}: `{describe(value)}` in column `{column}` is too large, its square does not fit float32; "
            "mend the row, or divide all of them"
        )
    return result


class Regression(Kind):
    """Predicting a number for a text or a pair."""

    name: ClassVar[str] = "regression"
    head = "AutoModelForSequenceClassification"
    snippet = Snippet(('print(outputs["logits"][:, 0])',))
    pipeline_tag = "text-classification"
    metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "mean_squared_error")
    labelled = False
    linear_probe = "numbers"

    @classmethod
    def of_model(cls, architecture: str, config: PretrainedConfig | None = None) -> Self | None:
        """A head for sequences with one output."""
        kind = super().of_model(architecture, config)
        if kind is None or config is None:
            return kind
        return kind if kind.means_the_same(config) else None

    def means_the_same(self, config: PretrainedConfig) -> bool:
        """Whether a head has one output, which is a number."""
        return config.num_labels == 1 and config.problem_type in (None, "regression")

    def guess_label(self, rows: SplitRows) -> str:
        """The column of the label."""
        return guess_one(rows, SCORES, "number")

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

    def encode(self, request: Any) -> Example:
        """A text or a pair."""
        return {**texts_in(self, request), "label": 0.0}

    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """The number."""
        values = np.asarray(outputs["logits"]).reshape(len(split), -1)[:, 0]
        return [{"value": float(value)} for value in values]

    def line(self, answer: Answer) -> str:
        """The number."""
        return f"{answer['value']:.4f}"
