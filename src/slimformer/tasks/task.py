"""A task by name, and loading its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError
from slimformer.registry import KINDS
from slimformer.tasks.data import TaskData
from slimformer.tasks.kinds import kind_of
from slimformer.tasks.kinds.kind import IncompleteRowError, check_settings
from slimformer.tasks.labels import collect
from slimformer.tasks.preset import Preset, preset_of
from slimformer.tasks.sources import read_splits
from slimformer.tasks.splits import Split, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from slimformer.tasks.columns import Columns
    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.sources import SplitRows


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
