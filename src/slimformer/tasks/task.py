"""A task by name, and its data: loaded and checked, what a trainer and an evaluation ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError
from slimformer.registry import KINDS
from slimformer.tasks.columns import collect
from slimformer.tasks.features import TensorCollator
from slimformer.tasks.kinds import check_settings, kind_of
from slimformer.tasks.kinds.texts import IncompleteRowError
from slimformer.tasks.metrics import SMALLER_IS_BETTER
from slimformer.tasks.preset import Preset, preset_of
from slimformer.tasks.sources import read_splits
from slimformer.tasks.splits import Split, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from slimformer.tasks.columns import Columns
    from slimformer.tasks.features import Features
    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.sources import SplitRows


@dataclass(frozen=True)
class TaskData:
    """Splits of examples, with everything that turns them into inputs and outputs into metrics.

    Args:
        preset: The task.
        kind: What the model has to do.
        splits: The splits that were asked for.
        labels: The labels in the order of the head; None where there are none.
        notes: What was done to the data that a user should know, in words.
    """

    preset: Preset
    kind: Kind
    splits: Mapping[str, Split]
    labels: list[str] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured."""
        return self.preset.metrics or self.kind.metric_names(self.labels)

    @property
    def primary_metric(self) -> str:
        """The metric that chooses between models."""
        return self.metrics[0]

    @property
    def greater_is_better(self) -> bool:
        """Whether more of the primary metric is better."""
        return self.primary_metric not in SMALLER_IS_BETTER

    def __len__(self) -> int:
        return sum(len(split) for split in self.splits.values())

    def __getitem__(self, split: str) -> Split:
        try:
            return self.splits[split]
        except KeyError:
            raise DataError(
                f"split `{split}` was not loaded; loaded: {', '.join(self.splits)}; name it when loading the task"
            ) from None

    def model_class(self) -> Any:
        """The Transformers class with the head that fits, such as `AutoModelForSequenceClassification`."""
        import transformers

        return getattr(transformers, self.kind.head)

    def config_kwargs(self) -> dict[str, Any]:
        """What `from_pretrained` has to be told for the head: number and names of the labels, kind of problem."""
        return self.kind.config_kwargs(self.labels)

    def check_head(self, outputs: int) -> None:
        """Refuse a head with fewer outputs than there are labels, naming the first row it has no output for."""
        if self.labels is None or outputs >= len(self.labels):
            return
        for split in self.splits.values():
            for index, example in enumerate(split):
                largest = max(self.kind.labels_of(example), default=-1)
                if largest >= outputs:
                    raise DataError(
                        f"{split.at(index)}: label `{self.labels[largest]}` is number {largest + 1} of "
                        f"{len(self.labels)}, but the model's head has {outputs} outputs; "
                        "start from a model without a head"
                    )
        raise DataError(
            f"the data has {len(self.labels)} labels, but the model's head has {outputs} outputs; "
            "start from a model without a head"
        )

    def prepare(
        self, split: str, processor: Any, max_length: int | None = None, seed: int = 0, *, training: bool = False
    ) -> Features:
        """Turn a split into inputs, once and the same every time.

        Args:
            split: Which split.
            processor: The tokenizer; for images the image processor, or None for [-1, 1] at `max_length` pixels a side.
            max_length: Tokens to cut to; unless given the preset's own, or the tokenizer's limit if that is less.
            seed: What random masks and partners depend on; nothing else is random.
            training: Whether it is trained on; embeddings learn from pairs.
        """
        longest = getattr(processor, "model_max_length", self.preset.max_length)
        length = min(self.preset.max_length, longest) if max_length is None else max_length
        make = self.kind.training_features if training else self.kind.features
        return make(self[split], processor, length, seed)

    def collator(self, processor: Any) -> TensorCollator:
        """What makes batches of inputs for a model in torch: it pickles, and pads to the longest of a batch."""
        return TensorCollator(self.kind.collator(processor))

    def items(self, batch: Mapping[str, Any]) -> int:
        """What the loss of a batch is a mean over: examples, or tokens that have a label."""
        return self.kind.items(batch)

    def outputs(self, outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        """Shrink a model's outputs for a batch, labels included, to what `compute_metrics` needs of them.

        The logits of a language model become three numbers an item, hidden states one vector; others pass unchanged.
        """
        arrays = tuple(self.kind.outputs(outputs, batch).values())
        return arrays if len(arrays) > 1 else arrays[0]

    def compute_metrics(self, split: str, features: Features, predictions: Any) -> dict[str, float]:
        """Measure a model's outputs on a prepared split.

        Args:
            split: Which split.
            features: What `prepare` gave for it.
            predictions: Outputs of the model for each item of `features`, in order: logits as an array, a pair of
                arrays (starts, ends) for question answering, what `outputs` gave for language models, embeddings
                for retrieval.
        """
        _check_predictions(split, features, predictions)
        return self.kind.score(self[split], features, predictions, self.labels, self.metrics)


def _check_predictions(split: str, features: Features, predictions: Any) -> None:
    import numpy as np

    for part in predictions if isinstance(predictions, tuple) else (predictions,):
        array = np.asarray(part)
        if len(array) != len(features):
            raise DataError(
                f"{len(array)} predictions for the {len(features)} items of `{split}`; give one for each, in order"
            )
        if np.isnan(array).any():
            row = int(np.flatnonzero(np.isnan(array).reshape(len(array), -1).any(-1))[0])
            raise DataError(
                f"prediction {row} of `{split}` is not a number; lower the learning rate or check the weights"
            )


@dataclass(frozen=True)
class Task:
    """A task: what the model has to do, where its data lies and how it is measured."""

    preset: Preset

    @property
    def name(self) -> str:
        """What users call it."""
        return self.preset.name

    def load(
        self,
        source: str | Path | None = None,
        splits: Sequence[str] = ("train", "dev"),
        *,
        text_column: str | Sequence[str] | None = None,
        label_column: str | None = None,
        limit: int | None = None,
        labels: Sequence[str] | None = None,
        language: str | None = None,
        kind: Kind | None = None,
        **settings: Any,
    ) -> TaskData:
        """Read and check the splits asked for; whatever is wrong with the data is an error here.

        Args:
            source: A folder, a file or a Hub name (`owner/name:config`); None for the preset's place on the Hub.
            splits: Some of train, dev, test; no other is read.
            text_column: The column with the text; two, joined with a comma or in a sequence, for pairs.
            label_column: The column with the label; for CoNLL files the number of the tag's column, from 0.
            limit: Keep only so many rows of each split, chosen by a hash of their number.
            labels: The label list of a trained model; a label that is not on it is an error.
            language: Which language of a multilingual data set; several are joined with commas.
            kind: What `kind` gave, if it was asked before.
            settings: What the kind of task may be told, such as `objective` for language modelling (`causal` to
                predict the next token, `masked` for tokens under a mask) or `label_separator` for multi-label.
        """
        return self._load(
            self.kind(**settings) if kind is None else kind,
            source,
            splits,
            text_column=text_column,
            label_column=label_column,
            limit=limit,
            labels=labels,
            language=language,
        )

    def _load(
        self,
        kind: Kind,
        source: str | Path | None,
        splits: Sequence[str],
        *,
        text_column: str | Sequence[str] | None,
        label_column: str | None,
        limit: int | None,
        labels: Sequence[str] | None,
        language: str | None,
    ) -> TaskData:
        options: dict[str, Any] = {}
        if self.preset.generic:
            options, label_column = kind.reader_options(label_column)

        def group(found: SplitRows) -> Sequence[str]:
            return kind.group(kind.columns(found, text_column, label_column))

        found = read_splits(self.preset, kind, source, splits, language=language, options=options, group=group)
        notes = list(dict.fromkeys(note for rows in found.values() for note in rows.notes))
        columns = {split: kind.columns(rows, text_column, label_column) for split, rows in found.items()}
        kind = kind.look_at((row, columns[split]) for split, rows in found.items() for row in rows.rows)
        parsed = {}
        for split, rows in found.items():
            parsed[split], dropped = _parse(kind, rows, columns[split], labels)
            if dropped:
                notes.append(f"{split}: {dropped} rows of `{rows.file}` left out because they are incomplete")
        names = None
        if kind.labelled:
            shared = any(rows.carved for rows in found.values())
            fixed = labels or self.preset.labels
            names = collect(parsed, kind.labels_of, fixed, shared=shared, least=kind.least_labels)
            parsed = {split: _with_ids(kind, each, names) for split, each in parsed.items()}
        limited = {split: _limited(each, limit, in_order=kind.in_order) for split, each in parsed.items()}
        return TaskData(self.preset, kind, limited, names, notes)

    def metrics(self, labels: Sequence[str] | None) -> tuple[str, ...]:
        """What is measured with these labels, the metric that chooses between models first."""
        return self.preset.metrics or self.kind().metric_names(labels)

    def kind(self, **settings: Any) -> Kind:
        """What the model has to do, with the preset's settings and those given besides."""
        check_settings(KINDS.get(self.preset.kind), self.name, settings)
        return kind_of(self.preset.kind, {**self.preset.settings, **settings})


def get_task(name: str) -> Task:
    """The task of that name: a preset such as `sst2`, or a generic one such as `classification`."""
    return Task(preset_of(name))


def _parse(kind: Kind, rows: SplitRows, columns: Columns, labels: Sequence[str] | None) -> tuple[Split, int]:
    """The examples of a split, with labels as text, and how many rows were left out."""
    rename = _renaming(rows.layout.label_names if rows.layout else {}, labels)
    tolerant = rows.layout is not None and rows.layout.drop_incomplete
    examples, origins, dropped = [], [], 0
    for row in rows.rows:
        try:
            made = kind.parse(row, columns, rename)
        except IncompleteRowError:
            if not tolerant:
                raise
            dropped += 1
            continue
        examples += made
        origins += [(row.file, row.line)] * len(made)
    if not examples:
        raise DataError(f"`{rows.file}` has no row that can be used; check its columns")
    return Split(examples, origins), dropped


def _renaming(names: Mapping[str, str], labels: Sequence[str] | None) -> Callable[[str], str]:
    """What the task calls a label of the file; a list of labels in the file's own spelling is left alone."""
    if labels is not None and not set(names.values()) & set(labels):
        return lambda label: label
    return lambda label: names.get(label, label)


def _with_ids(kind: Kind, split: Split, labels: Sequence[str]) -> Split:
    ids = {label: index for index, label in enumerate(labels)}
    return Split([kind.with_ids(example, ids) for example in split], split.origins)


def _limited(split: Split, limit: int | None, *, in_order: bool) -> Split:
    kept = list(range(len(split)))[:limit] if in_order and (limit is None or limit > 0) else sample(len(split), limit)
    return Split([split.examples[index] for index in kept], [split.origins[index] for index in kept])
