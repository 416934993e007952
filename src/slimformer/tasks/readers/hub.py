"""Data sets of the Hugging Face Hub, through the `datasets` library."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError
from slimformer.models.hub import AT, REVISION, explain
from slimformer.tasks.readers.table import Row, Table
from slimformer.tasks.splits import SYNONYMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from datasets import Dataset

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(rf"(?P<name>{_PART}(/{_PART})?)(:(?P<config>{_PART}))?({AT}(?P<revision>{REVISION}))?")


@dataclass(frozen=True)
class HubName:
    """A data set of the Hub, written `owner/name`, `owner/name:config` or either with `@revision` behind it.

    Args:
        name: Owner and name.
        config: Which of its parts; None where there is but one.
        revision: A branch, a tag or a commit; None for the main branch as it is.
    """

    name: str
    config: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        named = self.name if self.config is None else f"{self.name}:{self.config}"
        return named if self.revision is None else f"{named}{AT}{self.revision}"


def parse_hub_name(text: str) -> HubName | None:
    """Read `owner/name:config@revision`, of which the last two may be missing; None when it cannot be such a name."""
    match = _NAME.fullmatch(text)
    return HubName(match["name"], match["config"], match["revision"]) if match else None


def fetch(source: HubName) -> Mapping[str, Dataset]:
    """Load every split of a data set; any failure becomes one line."""
    from datasets import DatasetDict, load_dataset

    with loading(source):
        loaded = load_dataset(source.name, source.config, revision=source.revision)
    if not isinstance(loaded, DatasetDict):
        raise DataError(f"`{source}` came from the Hub without splits; give a folder or a file")
    return {str(split): dataset for split, dataset in loaded.items()}


@contextmanager
def loading(source: HubName) -> Iterator[None]:
    """Whatever the `datasets` library raises inside the `with` block becomes one line."""
    try:
        yield
    except Exception as error:
        raise not_loaded(source, error) from error


def not_loaded(source: HubName, error: Exception) -> DataError:
    """An error in one line; what a server says is put in our words, for it may hold addresses."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        reason, advice = explain(error, source.revision)
    else:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason, advice = f": {lines[0]}", "check the spelling and the network"
    return DataError(
        f"`{source}` is no file or folder here and could not be loaded from the Hub{reason}; {advice}, or give a "
        "folder or a file"
    )


def hub_splits(name: HubName, there: Sequence[str], splits: Sequence[str]) -> list[tuple[str, str]]:
    """The splits asked for, each with what the data set calls it."""
    names_there = []
    for split in splits:
        # MNLI calls its two halves validation_matched and validation_mismatched.
        names = [each for synonym in SYNONYMS[split] for each in (synonym, f"{synonym}_matched") if each in there]
        if not names:
            raise DataError(f"`{name}` has no split `{split}`; it has: {', '.join(there)}")
        names_there.append((split, names[0]))
    return names_there


def read_dataset(source: HubName, split: str, dataset: Dataset) -> Table:
    """Turn one split of a data set into rows; class numbers become class names."""
    names = {column: feature.names for column, feature in _class_labels(dataset).items()}
    listed = {column: feature.names for column, feature in _class_label_lists(dataset).items()}
    where = f"{source} {split}"
    rows = []
    for number, values in enumerate(dataset, start=1):
        named: dict[str, Any] = dict(values)
        for column, classes in names.items():
            named[column] = _class_name(named[column], classes)
        for column, classes in listed.items():
            named[column] = [_class_name(value, classes) for value in named[column]]
        rows.append(Row(named, where, number))
    return Table(where, tuple(dataset.column_names), rows)


def _class_labels(dataset: Dataset) -> dict[str, Any]:
    from datasets import ClassLabel

    return {column: feature for column, feature in dataset.features.items() if isinstance(feature, ClassLabel)}


def _class_label_lists(dataset: Dataset) -> dict[str, Any]:
    from datasets import ClassLabel

    inner = {column: getattr(feature, "feature", None) for column, feature in dataset.features.items()}
    return {column: feature for column, feature in inner.items() if isinstance(feature, ClassLabel)}


def _class_name(value: int | None, classes: list[str]) -> str | None:
    # -1 is how data sets without public test labels mark a row that has none.
    return None if value is None or value < 0 else classes[value]
