"""What a task is, as data, and the registry of tasks known."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from slimformer.errors import ConfigError, DataError, describe
from slimformer.registry import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How a file is read; each is an entry in `slimformer.tasks.readers`.
ReaderName = Literal[
    "csv", "tsv", "jsonl", "parquet", "text", "text-and-labels", "trec", "class-folders",
    "conll", "conllu", "squad", "images", "idx",
]  # fmt: skip


@dataclass(frozen=True)
class Carve:
    """How splits without a file of their own are cut from the file of another.

    Rows are grouped, the groups ordered by a hash of what they hold, and each split but the first takes
    its share of the groups; the first takes the rest. So a split depends on nothing but the data, and
    equal texts never lie on both sides.

    Args:
        pool: The split whose file is divided.
        shares: Split → its part of the groups.
        group: Columns whose equal values keep rows together; the text columns unless given.
    """

    pool: str
    shares: Mapping[str, float]
    group: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """One way a data set lies on disk.

    Args:
        files: Split → patterns in the order of preference; all files of the first that matches are read.
            `{language}` stands for the language asked for.
        reader: How a file is read.
        options: What the reader is told beyond the file, such as `columns` of a file without header.
        text: The columns that hold text: one, or two for a pair.
        join_text: Whether the text columns make one text rather than a pair.
        label: The column that holds the label, score, tags or answer; several names are tried in order.
        choices: The columns that hold the choices of a multiple-choice question.
        label_names: Label as the file spells it → label as the task names it.
        carve: How missing splits come about.
        split_column: A column that assigns rows to splits, used where a file has it: its name, and value → split.
        language_column: A column that names each row's language.
        default_language: The language when none is asked for.
        distinct_from: Split → another split whose texts are taken out of it.
        drop_incomplete: Leave out rows without text or choices instead of refusing the file.
    """

    files: Mapping[str, tuple[str, ...]]
    reader: ReaderName
    options: Mapping[str, Any] = field(default_factory=dict)
    text: tuple[str, ...] = ("text",)
    label: str | tuple[str, ...] | None = "label"
    choices: tuple[str, ...] = ()
    join_text: bool = False
    label_names: Mapping[str, str] = field(default_factory=dict)
    carve: Carve | None = None
    split_column: tuple[str, Mapping[str, str]] | None = None
    language_column: str | None = None
    default_language: str = "en"
    distinct_from: Mapping[str, str] = field(default_factory=dict)
    drop_incomplete: bool = False


@dataclass(frozen=True)
class Hub:
    """Where a data set lies on the Hugging Face Hub, and its columns there."""

    name: str
    text: tuple[str, ...] = ("text",)
    label: str | None = "label"
    choices: tuple[str, ...] = ()
    label_names: Mapping[str, str] = field(default_factory=dict)

    def layout(self) -> Layout:
        """How its rows are read."""
        return Layout(
            {}, "parquet", text=self.text, label=self.label, choices=self.choices, label_names=self.label_names
        )


@dataclass(frozen=True)
class Preset:
    """A task by name: what the model has to do, where its data lies and how it is measured.

    Args:
        name: What users call it.
        kind: What the model has to do: a name of `slimformer.registry.KINDS`.
        summary: One line for lists and tables.
        layouts: The ways its data lies on disk, tried in order; none for a generic task, whose files are
            found by split names and whose columns are guessed.
        labels: The labels in the order of the head; None where the data decides.
        metrics: What is measured, the first being the one that chooses between models; None for all that
            the kind offers, in its order.
        max_length: Tokens a text is cut to unless told otherwise; pixels a side for images.
        hub: Where it lies on the Hub.
        multilingual: Whether `language` has a meaning.
        settings: What the kind is told, such as `null_answers` for question answering.
    """

    name: str
    kind: str
    summary: str
    layouts: tuple[Layout, ...] = ()
    labels: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    max_length: int = 128
    hub: Hub | None = None
    multilingual: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def generic(self) -> bool:
        """Whether files and columns are anybody's own rather than those of a known data set."""
        return not self.layouts


_presets: dict[str, Preset] = {}


def register(*presets: Preset) -> None:
    """Make tasks known; a later entry with the same name replaces the earlier one."""
    for preset in presets:
        _presets[_key(preset.name)] = preset


def known() -> tuple[str, ...]:
    """Names of the tasks known, in alphabetical order: presets, and a generic task for each kind."""
    return tuple(sorted({*KINDS, *(preset.name for preset in _presets.values())}))


def preset_of(name: str) -> Preset:
    """Look a task up by name; case, and whether words are joined by `-` or `_`, do not matter."""
    key = _key(name)
    if key in _presets:
        return _presets[key]
    if key in KINDS:
        return _generic(key)
    near = difflib.get_close_matches(name, known(), n=1)
    meant = f" (do you mean `{near[0]}`?)" if near else ""
    raise DataError(f"task `{name}` is not known{meant}; give one of: {', '.join(known())}")


def _generic(kind: str) -> Preset:
    """The task for anybody's own files: splits found by file name, columns guessed when there is no doubt."""
    return Preset(kind, kind, KINDS.help(kind), max_length=KINDS.get(kind).max_length)


def _key(name: str) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"a task is called `{describe(name)}`, which is no text; give its name")
    return name.strip().lower().replace("_", "-")
