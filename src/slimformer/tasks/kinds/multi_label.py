"""Texts, or pairs of them, with any number of labels each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.columns import LABELS, Columns, guess_one, label_text
from slimformer.tasks.features import Features
from slimformer.tasks.kinds.answers import Snippet, label_of, scored_line, sigmoid
from slimformer.tasks.kinds.kind import MULTI_LABEL, Answer, Arrays, Kind, Rename
from slimformer.tasks.kinds.texts import text_features, texts_in, texts_of
from slimformer.tasks.metrics import ClassScores, multi_label_metrics, score_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transformers import PretrainedConfig

    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

#: What may stand between the labels of a row.
SEPARATORS = (";", "|", ",")
#: Names of a column of labels beyond those that every classification knows.
MANY = ("tags", "topics", "categories", "genres")
#: A label is given to a text from this probability on.
THRESHOLD = 0.5


class MultiLabel(Kind):
    """Any number of labels for a text, each judged by itself: a sigmoid for each, binary cross-entropy over all.

    A row holds a list of labels, or a text in which they are joined by `;`, `|` or `,`. Which of these it is follows
    from the data if only one of them occurs in the column; else the setting `label_separator` says so.
    """

    name = "multi-label"
    head = "AutoModelForSequenceClassification"
    snippet = Snippet(
        ('print([[label for label, x in zip(about["labels"], row) if x >= 0] for row in outputs["logits"]])',)
    )
    pipeline_tag = "text-classification"
    metrics = ("f1_micro", "f1_macro", "accuracy", "lrap")
    exclusive = False
    least_labels = 1
    choices: ClassVar[Mapping[str, tuple[str, ...] | None]] = {"label_separator": SEPARATORS}

    @classmethod
    def of_model(cls, architecture: str, config: PretrainedConfig | None = None) -> Self | None:
        """A head for sequences whose outputs are judged one by one."""
        return cls() if cls.owns(architecture) and config is not None and config.problem_type == MULTI_LABEL else None

    def means_the_same(self, config: PretrainedConfig) -> bool:
        """Whether outputs are judged one by one."""
        return bool(config.problem_type == MULTI_LABEL)

    def config_kwargs(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """What the head has to be told."""
        return {**super().config_kwargs(labels), "problem_type": MULTI_LABEL}

    def guess_label(self, rows: SplitRows) -> str:
        """The column of the labels."""
        return guess_one(rows, (*LABELS, *MANY), "labels")

    def look_at(self, rows: Iterable[tuple[Row, Columns]]) -> Self:
        """Find out what stands between labels."""
        if self.settings.get("label_separator") is not None:
            return self
        seen: dict[str, Row] = {}
        for row, columns in rows:
            value = row.values[columns.label or ""]
            for separator in SEPARATORS if isinstance(value, str) else ():
                if separator in value:
                    seen.setdefault(separator, row)
        if len(seen) > 1:
            where = " and ".join(f"`{separator}` ({row.at()})" for separator, row in seen.items())
            raise DataError(
                f"labels may be joined by {where}; say which it is with label_separator, or give lists as JSONL"
            )
        return self.with_settings(label_separator=next(iter(seen), None))

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One example; an empty cell is one without a label."""
        assert columns.label is not None
        labels = [rename(label_text(label, row, columns.label)) for label in self._split(row, columns.label)]
        return [{**texts_of(row, columns), "labels": list(dict.fromkeys(labels))}]

    def _split(self, row: Row, column: str) -> list[Any]:
        value = row.values[column]
        if value is None or isinstance(value, (list, tuple)):
            return list(value or ())
        if isinstance(value, float) and np.isnan(value):
            return []
        separator = self.settings.get("label_separator")
        if not isinstance(value, str) or separator is None:
            return [value] if str(value).strip() else []
        return [label for label in value.split(separator) if label.strip()]

    def labels_of(self, example: Example) -> Iterable[Any]:
        """All labels of the text."""
        labels: list[Any] = example["labels"]
        return labels

    def with_ids(self, example: Example, ids: Mapping[str, int]) -> Example:
        """The example with labels as numbers, and how many there are to choose from."""
        return {**example, "labels": [ids[label] for label in example["labels"]], "outputs": len(ids)}

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise the texts; the target has a 1 for each label."""
        items = text_features(split, processor, max_length, label=False)
        return Features([{**item, "labels": target} for item, target in zip(items, _targets(split), strict=True)])

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare with the truth."""
        scores = sigmoid(np.asarray(predictions, np.float64))
        return multi_label_metrics(np.stack(_targets(split)).astype(int), scores, THRESHOLD, metrics)

    def by_class(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None
    ) -> ClassScores | None:
        """Each label by itself."""
        chosen = sigmoid(np.asarray(predictions, np.float64)) >= THRESHOLD
        return score_labels(np.stack(_targets(split)).astype(int), chosen.astype(int), list(labels or ()))

    def encode(self, request: Any) -> Example:
        """A text or a pair."""
        return {**texts_in(self, request), "labels": [], "outputs": 0}

    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """Every label that is likelier than not, and the probability of each."""
        answers = []
        for row in sigmoid(np.asarray(outputs["logits"])):
            scores = {label_of(labels, number): float(share) for number, share in enumerate(row)}
            answers.append(
                {"labels": [label for label, share in scores.items() if share >= THRESHOLD], "scores": scores}
            )
        return answers

    def line(self, answer: Answer) -> str:
        """The labels, the likeliest first."""
        chosen = {label: answer["scores"][label] for label in answer["labels"]}
        return scored_line(chosen, len(chosen)) or "(no label)"


def _targets(split: Split) -> list[np.ndarray[Any, Any]]:
    targets = [np.zeros(example["outputs"], np.float32) for example in split]
    for target, example in zip(targets, split, strict=True):
        target[example["labels"]] = 1
    return targets
