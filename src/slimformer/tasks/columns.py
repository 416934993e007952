"""Which columns hold the text and the label, and what a label is: read, collected, and refused when it is none."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError, describe, shorten
from slimformer.tasks.readers.delimited import looks_headerless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from transformers import PretrainedConfig

    from slimformer.tasks.preset import Preset
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

PAIRS = (
    ("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_a", "sentence_b"), ("text1", "text2"),
    ("text_a", "text_b"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"),
    ("question", "passage"), ("question", "context"), ("query", "document"), ("query", "passage"),
    ("anchor", "positive"),
)  # fmt: skip
TEXTS = ("text", "sentence", "content", "document", "review", "tweet", "utterance", "question", "query", "body")
LABELS = ("label", "labels", "class", "category", "target", "gold_label", "sentiment", "intent", "emotion", "topic")
SCORES = ("score", "label", "target", "rating", "value", "similarity", "relatedness_score")
TOKENS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "pos_tags", "labels", "upos")
ANSWERS = ("answer", "label", "answerkey", "correct", "gold")
IDS = ("id", "idx", "index", "guid", "uid", "unnamed: 0", "")


@dataclass(frozen=True)
class Columns:
    """The columns a task reads.

    Args:
        text: One column, or two for a pair.
        label: The column of the label, score, tags or answer; None when the kind has none.
        choices: The columns of the choices, when each choice has its own.
        join_text: Whether the text columns make one text rather than a pair.
    """

    text: tuple[str, ...]
    label: str | None = None
    choices: tuple[str, ...] = ()
    join_text: bool = False

    def __post_init__(self) -> None:
        if self.label is not None and self.label in self.text:
            raise DataError(
                f"column `{self.label}` is text and label at once, so a model would only copy it; "
                "choose with text_column and label_column"
            )


def given_columns(columns: str | Sequence[str] | None, there: Sequence[str]) -> tuple[str, ...] | None:
    """What a user gave: one name, several joined with commas, or a sequence."""
    if columns is None:
        return None
    if not isinstance(columns, str):
        names = tuple(columns)
    else:
        names = (columns,) if columns in there else tuple(name.strip() for name in columns.split(","))
    if len(set(names)) < len(names):
        raise DataError(f"text_column is `{','.join(names)}`, which names a column twice; name each once")
    return names


def check_columns(names: Sequence[str], rows: SplitRows, advice: str) -> None:
    """Refuse columns that a file does not have."""
    for name in names:
        if name not in rows.columns:
            raise DataError(
                f"`{rows.file}` has no column `{name}`; it has {listed_columns(rows.columns)}; {_advice(rows, advice)}"
            )


def guess_text(rows: SplitRows, taken: str | None, *, pairs: bool = True) -> tuple[str, ...]:
    """The text column, or the pair of them, if there is only one way to read the names."""
    ways = ways_to_read([name for name in rows.columns if name != taken], pairs=pairs)
    _refuse_same(rows)
    if not ways:
        ways = [(name,) for name in rows.columns if name != taken and name.lower() not in IDS]
        if rows.header and len(rows.columns) == 1 and looks_headerless(rows.columns, rows.rows):
            name = shorten(rows.columns[0], 60)
            rows.notes.append(
                f"line 1 of `{rows.file}`, `{name}`, is taken for the name of its column; if it is data, give "
                "`--no-header`"
            )
        if taken is None and len(ways) > 1:
            ways = []
    if len(ways) != 1:
        raise DataError(
            f"`{rows.file}` does not tell which column holds the text: it has {listed_columns(rows.columns)}; "
            + _advice(rows, "name it with text_column, or two joined with a comma for pairs", "text")
        )
    return ways[0]


def ways_to_read(names: Sequence[str], *, pairs: bool = True) -> list[tuple[str, ...]]:
    """The text columns and pairs of them that some names are known as."""
    there = {name.lower(): name for name in names}
    candidates = [pair for pair in PAIRS if pairs and set(pair) <= set(there)]
    in_pairs = {name for pair in candidates for name in pair}
    singles = [(name,) for name in TEXTS if name in there and name not in in_pairs]
    return [tuple(there[name] for name in way) for way in [*candidates, *singles]]


def guess_one(rows: SplitRows, names: Sequence[str], what: str, option: str = "label_column") -> str:
    """The only column that bears one of the names, or else the only one that is neither text nor a number of rows."""
    matching = [name for name in rows.columns if name.lower() in names]
    if not matching:
        texts = {*TEXTS, *IDS, *(name for pair in PAIRS for name in pair)}
        rest = [name for name in rows.columns if name.lower() not in texts]
        matching = rest if len(rest) < len(rows.columns) else []
    if len(matching) != 1:
        raise DataError(
            f"`{rows.file}` does not tell which column holds the {what}: it has {listed_columns(rows.columns)}; "
            + _advice(rows, f"name it with {option}", names[0])
        )
    return matching[0]


def _refuse_same(rows: SplitRows) -> None:
    """Refuse to choose between columns that differ in capitals alone."""
    seen: dict[str, str] = {}
    for name in rows.columns:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise DataError(
                f"`{rows.file}` has columns `{other}` and `{name}`, which differ in capitals alone; "
                "choose with text_column and label_column"
            )


def _advice(rows: SplitRows, usual: str, name: str | None = None) -> str:
    """What to do about columns: `--no-header` where the first line looks like data, else the usual, or a known name."""
    if rows.header and looks_headerless(rows.columns, rows.rows):
        return "this looks like a file without a header: give `--no-header`, and columns by their numbers from 0"
    numbered = rows.columns == tuple(map(str, range(len(rows.columns))))
    return usual if name is None or numbered else f"{usual}, or call it `{name}` in the file"


def listed_columns(names: Sequence[str]) -> str:
    """Column names as messages show them."""
    shown = ", ".join(f"`{shorten(name, 60)}`" for name in names)
    return ("the columns " if len(names) != 1 else "the column ") + shown


_LABELS_SHOWN = 20
#: No label is longer; a column of texts was taken for one of labels.
MOST_LABEL = 1_000
#: A column with a different value in each of so many rows holds no labels.
_SUSPICIOUS_ROWS = 20


def label_text(value: Any, row: Row, column: str) -> str:
    """A label as text: `1`, `1.0` and `"1"` are the same label; an empty one is an error."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple | bytes):
        raise DataError(
            f"{row.at()}: column `{column}` holds `{describe(value)}`, a {type(value).__name__}, where a label is "
            "expected; choose another with label_column"
        )
    if isinstance(value, float):
        if math.isnan(value):
            value = None
        elif math.isinf(value):
            raise DataError(f"{row.at()}: column `{column}` holds `{value}`, which is no label; mend the row")
        elif value.is_integer():
            value = int(value)
    text = "" if value is None else str(value).strip()
    if shows_nothing(text):
        raise DataError(f"{row.at()}: the label in column `{column}` is empty; label the row or remove it")
    if len(text) > MOST_LABEL:
        raise DataError(
            f"{row.at()}: the label in column `{column}` has {len(text):,} characters, the first `{text[:40]}`; "
            "choose another column with label_column"
        )
    return text


def shows_nothing(text: str) -> bool:
    """Whether a text has no character that can be seen: it is empty, blank, or of zero width."""
    return not any(char.isprintable() and not char.isspace() for char in text)


def label_names(config: PretrainedConfig) -> list[str] | None:
    """The labels a config names in the order of the outputs; None where it has but Transformers' stand-ins."""
    names = [str(name) for _, name in sorted((config.id2label or {}).items())]
    return None if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names


def collect(
    splits: Mapping[str, Split],
    values: Callable[[Example], Iterable[str]],
    fixed: Sequence[str] | None,
    *,
    shared: bool,
    least: int = 2,
    task: Preset | None = None,
) -> list[str]:
    """The label list: the fixed one, or what occurs in train, sorted; then every split is checked against it.

    Args:
        splits: The splits with their labels as text.
        values: The labels of an example.
        fixed: The list, when it is already decided.
        shared: Whether the splits were cut from one file, so that a label seen in any of them counts.
        least: How many there have to be.
        task: The task whose list it is; a trained model's where None.
    """
    if fixed is not None:
        labels = _checked_list(fixed)
    else:
        names = ["train"] if "train" in splits and not shared else list(splits)
        found = {label for name in names for example in splits[name] for label in values(example)}
        labels = sorted(found, key=_order)
        _check_count(splits[names[0]], labels, least)
    origin, advice = "the model" if fixed is not None else "train", "remove it"
    if task is not None:
        origin, advice = f"task `{task.name}`", f"give `--task {task.kind}` for labels of your own"
    for split in splits.values():
        _check_split(split, values, labels, origin, advice)
    return labels


def _checked_list(labels: Sequence[str]) -> list[str]:
    repeated = sorted({label for label in labels if list(labels).count(label) > 1})
    if repeated:
        raise DataError(f"label `{repeated[0]}` is in the label list twice; name every label once")
    return list(labels)


def _check_split(
    split: Split, values: Callable[[Example], Iterable[str]], labels: Sequence[str], origin: str, advice: str
) -> None:
    known = set(labels)
    for index, example in enumerate(split):
        for label in values(example):
            if label not in known:
                raise DataError(
                    f"{split.at(index)}: label `{label}` is not one of {listed(labels)}, the labels of {origin}; "
                    f"mend the row, or {advice}"
                )


def _check_count(split: Split, labels: Sequence[str], least: int) -> None:
    if not labels:
        raise DataError(f"{split.at(0)}: neither this row nor any other has a label; label some rows")
    if len(labels) < least:
        raise DataError(f"{split.at(0)}: every row has the label `{labels[0]}`; a classifier needs at least two")
    if len(labels) >= max(_SUSPICIOUS_ROWS, len(split)):
        raise DataError(
            f"{split.at(0)}: all {len(split)} rows have different labels, the first `{labels[0][:40]}`; "
            "choose another column with label_column, or use the task `regression` for numbers"
        )


def listed(labels: Sequence[str]) -> str:
    """Labels as messages show them."""
    shown = ", ".join(f"`{label}`" for label in labels[:_LABELS_SHOWN])
    return shown + (f" and {len(labels) - _LABELS_SHOWN} more" if len(labels) > _LABELS_SHOWN else "")


def _order(label: str) -> tuple[int, float, str]:
    # The outside tag first, then numbers by size, then words by the alphabet.
    if label == "O":
        return (0, 0.0, label)
    try:
        value = float(label)
    except ValueError:
        return (2, 0.0, label)
    # Neither less nor more than any other, it would leave the order to chance: a word like others.
    return (2, 0.0, label) if math.isnan(value) else (1, value, label)


def first_present(names: str | tuple[str, ...] | None, rows: SplitRows) -> str | None:
    """The first of the names a layout knows a column by that the file has."""
    if names is None or isinstance(names, str):
        return names
    return next((name for name in names if name in rows.columns), names[0])
