"""Texts, or pairs of them, with one label each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.columns import LABELS, Columns, guess_one, label_text
from slimformer.tasks.encoding import TextEncoder
from slimformer.tasks.features import Features
from slimformer.tasks.kinds.kind import Answer, Arrays, Kind, Rename, check_length, label_of, softmax, text_of
from slimformer.tasks.metrics import classification_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

#: Labels whose scores a person is shown.
SHOWN = 3


class Classification(Kind):
    """Text classification; two text columns make a pair."""

    name = "classification"
    head = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"
    metrics = ("accuracy", "f1_macro", "f1_micro", "matthews")
    linear_probe = "classes"

    @classmethod
    def of_model(cls, architecture: str, config: PretrainedConfig | None = None) -> Self | None:
        """A head for sequences that chooses one of several classes."""
        kind = super().of_model(architecture, config)
        if kind is None or config is None:
            return kind
        chooses = config.problem_type in (None, "single_label_classification") and config.num_labels != 1
        return kind if chooses else None

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

    def encode(self, request: Any) -> Example:
        """A text or a pair."""
        return {**texts_in(self, request), "label": 0}

    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """The likeliest label, and the probability of each."""
        return class_answers(outputs["logits"], labels)

    def line(self, answer: Answer) -> str:
        """The likeliest labels."""
        return scored_line(answer["scores"])


def class_answers(logits: Any, labels: Sequence[str] | None) -> list[Answer]:
    """The likeliest of several classes, and the probability of each."""
    answers = []
    for row in softmax(np.asarray(logits)):
        scores = {label_of(labels, number): float(share) for number, share in enumerate(row)}
        answers.append({"label": label_of(labels, row.argmax()), "probability": float(row.max()), "scores": scores})
    return answers


def scored_line(scores: Mapping[str, float], most: int = SHOWN) -> str:
    """The labels with the highest scores, as people read them."""
    best = sorted(scores.items(), key=lambda entry: -entry[1])[:most]
    return ", ".join(f"{label} {score:.4f}" for label, score in best)


def texts_of(row: Row, columns: Columns) -> Example:
    """`text`, and `text_pair` when there are two columns that are not to be joined."""
    if columns.join_text:
        return {"text": " ".join(text_of(row, column) for column in columns.text)}
    names = ("text", "text_pair")
    return {name: text_of(row, column) for name, column in zip(names, columns.text, strict=False)}


def texts_in(kind: Kind, request: Any) -> Example:
    """The text or the pair in a request."""
    if isinstance(request, str):
        request = {"text": request}
    elif isinstance(request, (tuple, list)) and len(request) == 2:
        request = dict(zip(("text", "text_pair"), request, strict=True))
    if not isinstance(request, Mapping) or not isinstance(request.get("text"), str):
        raise kind.unfit(request)
    example = {"text": request["text"]}
    if request.get("text_pair") is not None:
        example["text_pair"] = request["text_pair"]
    for name, text in example.items():
        if not isinstance(text, str):
            raise kind.unfit(request)
        if not text.strip():
            raise DataError(f"the {name} of a request is empty; give {kind.request}")
    return example


def text_features(split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int, *, label: bool = True) -> Features:
    """Tokenise texts or pairs; in a pair that is too long, the longer text is cut first."""
    check_length(tokenizer, max_length)
    inputs: list[dict[str, Any]] = [{} for _ in split]
    encoder = TextEncoder(tokenizer)
    # Requests may be texts and pairs in turn; a pair has special tokens of its own.
    for paired in (False, True):
        chosen = [index for index, example in enumerate(split) if ("text_pair" in example) == paired]
        if not chosen:
            continue
        pairs = [split[index]["text_pair"] for index in chosen] if paired else None
        encoded = encoder.inputs([split[index]["text"] for index in chosen], pairs, max_length)
        for index, item in zip(chosen, encoded, strict=True):
            inputs[index] = {**item, "labels": split[index]["label"]} if label else item
    return Features(inputs)
