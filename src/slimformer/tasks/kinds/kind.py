"""What every kind of task answers: how rows become examples, examples inputs, and outputs a score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from slimformer.errors import DataError
from slimformer.tasks.collators import padding_collator
from slimformer.tasks.columns import Columns, check_columns, given_columns, guess_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.features import Features
    from slimformer.tasks.preset import KindName
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

#: Gives a label as the file spells it the name it bears in the task.
Rename: TypeAlias = Callable[[str], str]


class IncompleteRowError(DataError):
    """A row lacks its text or its choices; some presets leave such rows out."""


class Kind(ABC):
    """One kind of task.

    Args:
        settings: What a preset tells the kind beyond its name.
    """

    #: What presets call the kind.
    name: ClassVar[KindName]
    #: The Transformers class whose head fits.
    head: ClassVar[str]
    #: What can be measured, the one that chooses between models first.
    metrics: ClassVar[tuple[str, ...]]
    #: Whether there is a list of labels.
    labelled: ClassVar[bool] = True
    #: Whether rows are running text, which is cut and sampled in order.
    in_order: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = dict(settings or {})

    def columns(self, found: SplitRows, text: str | Sequence[str] | None, label: str | None) -> Columns:
        """Which columns to read: those given, those of the layout, or those there is no doubt about."""
        layout = found.layout
        label_column = label or (_present(layout.label, found) if layout else self.guess_label(found))
        if label_column is not None:
            check_columns([label_column], found, "choose with label_column")
        texts = given_columns(text, found.columns) or (layout.text if layout else self.guess_text(found, label_column))
        check_columns(texts, found, "choose with text_column")
        choices = layout.choices if layout else self.guess_choices(found, label_column)
        check_columns(choices, found, "give a file that has it")
        return Columns(texts, label_column, choices, join_text=layout is not None and layout.join_text)

    def guess_text(self, found: SplitRows, label: str | None) -> tuple[str, ...]:
        """The text columns of somebody's own file."""
        return guess_text(found, label)

    def guess_label(self, found: SplitRows) -> str | None:
        """The label column of somebody's own file."""
        return None

    def guess_choices(self, found: SplitRows, label: str | None) -> tuple[str, ...]:
        """The columns of the choices in somebody's own file."""
        return ()

    def group(self, columns: Columns) -> tuple[str, ...]:
        """The columns whose equal values keep rows together when a file is divided."""
        return columns.text

    @abstractmethod
    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """The examples of a row, with labels as text; whatever is wrong with the row is an error here."""

    def labels_of(self, example: Example) -> Iterable[str]:
        """The labels of an example as text."""
        return (example["label"],)

    def with_ids(self, example: Example, ids: Mapping[str, int]) -> Example:
        """The example with labels as numbers."""
        return {**example, "label": ids[example["label"]]}

    def metric_names(self, labels: Sequence[str] | None) -> tuple[str, ...]:
        """What is measured unless the preset says otherwise."""
        return self.metrics

    def config_kwargs(self, labels: Sequence[str] | None) -> dict[str, Any]:
        """What the model's config has to be told."""
        if labels is None:
            return {}
        return {
            "num_labels": len(labels),
            "id2label": dict(enumerate(labels)),
            "label2id": {label: index for index, label in enumerate(labels)},
        }

    @abstractmethod
    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """The inputs of a split."""

    def collator(self, processor: Any) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]:
        """What makes batches of inputs."""
        return padding_collator(processor)

    @abstractmethod
    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Measure a model's outputs."""


def _present(names: str | tuple[str, ...] | None, found: SplitRows) -> str | None:
    """The first of the names a layout knows a column by that the file has."""
    if names is None or isinstance(names, str):
        return names
    return next((name for name in names if name in found.columns), names[0])


def text_of(row: Row, column: str) -> str:
    """The text in a column; a missing or blank one is an error."""
    value = row.values.get(column)
    if not isinstance(value, str):
        raise IncompleteRowError(
            f"{row.at()}: column `{column}` holds `{value}` and no text; mend the row or remove it"
        )
    if not value.strip():
        raise IncompleteRowError(f"{row.at()}: the text in column `{column}` is empty; mend the row or remove it")
    return value.strip()


def need_fast(tokenizer: PreTrainedTokenizerBase, task: str) -> None:
    """Refuse a tokenizer that cannot tell where its tokens stand in the text."""
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            f"{task} needs to know where tokens stand in the text, which `{type(tokenizer).__name__}` cannot tell; "
            "use a fast tokenizer (a checkpoint with tokenizer.json)"
        )


def check_length(tokenizer: PreTrainedTokenizerBase, max_length: int, least: int = 3) -> None:
    """Refuse a length that the model cannot take or that leaves no room for text."""
    longest = tokenizer.model_max_length
    if max_length > longest:
        raise DataError(
            f"max_length `{max_length}` is more than the {longest} tokens the tokenizer allows; give {longest} or less"
        )
    if max_length < least:
        raise DataError(f"max_length `{max_length}` leaves no room for text; give at least {least}")
