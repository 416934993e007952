"""Texts, or pairs of them, with one label each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.tasks.columns import LABELS, Columns, guess_one
from slimformer.tasks.features import Features, as_arrays
from slimformer.tasks.kinds.kind import Kind, Rename, check_length, text_of
from slimformer.tasks.labels import label_text
from slimformer.tasks.metrics.classification import classification_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split


class Classification(Kind):
    """Text classification; two text columns make a pair."""

    name = "classification"
    head = "AutoModelForSequenceClassification"
    metrics = ("accuracy", "f1_macro", "f1_micro", "matthews")

    def guess_label(self, found: SplitRows) -> str:
        """The column of the label."""
        return guess_one(found, LABELS, "label")

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One example."""
        assert columns.label is not None
        label = rename(label_text(row.values[columns.label], row, columns.label))
        return [{**texts_of(row, columns), "label": label}]

    def config_kwargs(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """What the head has to be told."""
        return {**super().config_kwargs(labels), "problem_type": "single_label_classification"}

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise the texts."""
        return text_features(split, processor, max_length)

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare with the truth."""
        truth = np.array([example["label"] for example in split])
        return classification_metrics(truth, np.asarray(predictions).argmax(-1), len(labels or ()), metrics)


def texts_of(row: Row, columns: Columns) -> Example:
    """`text`, and `text_pair` when there are two columns that are not to be joined."""
    if columns.join_text:
        return {"text": " ".join(text_of(row, column) for column in columns.text)}
    names = ("text", "text_pair")
    return {name: text_of(row, column) for name, column in zip(names, columns.text, strict=False)}


def text_features(split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int, *, label: bool = True) -> Features:
    """Tokenise texts or pairs; in a pair that is too long, the longer text is cut first."""
    check_length(tokenizer, max_length)
    texts = [example["text"] for example in split]
    pairs = [example["text_pair"] for example in split] if "text_pair" in split[0] else None
    encoded = tokenizer(texts, pairs, truncation=True, max_length=max_length)
    inputs = []
    for index, example in enumerate(split):
        item = as_arrays({name: encoded[name][index] for name in encoded})
        inputs.append({**item, "labels": example["label"]} if label else item)
    return Features(inputs)
