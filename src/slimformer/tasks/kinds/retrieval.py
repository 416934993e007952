"""Texts whose embeddings should lie near those of their like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.columns import LABELS, Columns, guess_one
from slimformer.tasks.kinds.classification import text_features
from slimformer.tasks.kinds.kind import Kind, Rename, text_of
from slimformer.tasks.labels import label_text
from slimformer.tasks.metrics.neighbours import leave_one_out, one_nearest_neighbour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.tasks.features import Features
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split


class Retrieval(Kind):
    """Labelled texts, or pairs of texts that belong together.

    A pair becomes two items that share a label of their own, so both are measured alike: an item counts as
    right when its nearest neighbour among the others of its split bears its label. Predictions are embeddings;
    `against_database` looks a split up in another one instead.
    """

    name = "retrieval"
    head = "AutoModel"
    metrics = ("one_nearest_neighbour",)
    labelled = False

    def guess_label(self, found: SplitRows) -> str | None:
        """The label column; none in a file of pairs."""
        return guess_one(found, LABELS, "label") if any(name.lower() in LABELS for name in found.columns) else None

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One labelled item, or the two of a pair."""
        texts = [text_of(row, column) for column in columns.text]
        if len(texts) == 1 and columns.label is None:
            raise DataError(
                f"{row.at()}: one text column and no label; name the label with label_column or two text columns"
            )
        label = (
            f"{row.file}:{row.line}"
            if columns.label is None
            else rename(label_text(row.values[columns.label], row, columns.label))
        )
        return [{"text": text, "label": label} for text in texts]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise the items; a bare encoder takes no labels."""
        return text_features(split, processor, max_length, label=False)

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Look every item up."""
        truth = np.array([example["label"] for example in split])
        return {"one_nearest_neighbour": leave_one_out(np.asarray(predictions), truth)}


def against_database(database: Split, embeddings: Any, split: Split, queries: Any) -> float:
    """Share of a split's items whose nearest neighbour in another split bears their label."""
    return one_nearest_neighbour(
        embeddings, [item["label"] for item in database], queries, [item["label"] for item in split]
    )
