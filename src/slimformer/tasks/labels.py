"""Labels: reading one, collecting the list, and refusing what is not on it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from transformers import PretrainedConfig

    from slimformer.tasks.readers import Row
    from slimformer.tasks.splits import Example, Split

_LABELS_SHOWN = 20
#: A column with a different value in each of so many rows holds no labels.
_SUSPICIOUS_ROWS = 20


def label_text(value: Any, row: Row, column: str) -> str:
    """A label as text: `1`, `1.0` and `"1"` are the same label; an empty one is an error."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if math.isnan(value):
            value = None
        elif value.is_integer():
            value = int(value)
    text = "" if value is None else str(value).strip()
    if not text:
        raise DataError(f"{row.at()}: the label in column `{column}` is empty; label the row or remove it")
    return text


def label_names(config: PretrainedConfig) -> list[str] | None:
    """The labels a config names in the order of the outputs; None where it has but Transformers' stand-ins."""
    names = [str(name) for _, name in sorted((config.id2label or {}).items())]
    return None if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names


def number(value: Any, row: Row, column: str) -> float:
    """A regression target; anything but a finite number is an error."""
    try:
        result = float(value)
    except (TypeError, ValueError):
        result = math.nan
    if not math.isfinite(result):
        raise DataError(f"{row.at()}: `{value}` in column `{column}` is not a finite number; mend the row or remove it")
    return result


def collect(
    splits: Mapping[str, Split],
    values: Callable[[Example], Iterable[str]],
    fixed: Sequence[str] | None,
    *,
    shared: bool,
    least: int = 2,
) -> list[str]:
    """The label list: the fixed one, or what occurs in train, sorted; then every split is checked against it.

    Args:
        splits: The splits with their labels as text.
        values: The labels of an example.
        fixed: The list, when it is already decided.
        shared: Whether the splits were cut from one file, so that a label seen in any of them counts.
        least: How many there have to be.
    """
    if fixed is not None:
        labels = _checked_list(fixed)
    else:
        names = ["train"] if "train" in splits and not shared else list(splits)
        found = {label for name in names for example in splits[name] for label in values(example)}
        labels = sorted(found, key=_order)
        _check_count(splits[names[0]], labels, least)
    origin = "the model or task" if fixed is not None else "train"
    for split in splits.values():
        _check_split(split, values, labels, origin)
    return labels


def _checked_list(labels: Sequence[str]) -> list[str]:
    repeated = sorted({label for label in labels if list(labels).count(label) > 1})
    if repeated:
        raise DataError(f"label `{repeated[0]}` is in the label list twice; name every label once")
    return list(labels)


def _check_split(split: Split, values: Callable[[Example], Iterable[str]], labels: Sequence[str], origin: str) -> None:
    known = set(labels)
    for index, example in enumerate(split):
        for label in values(example):
            if label not in known:
                raise DataError(
                    f"{split.at(index)}: label `{label}` is not one of {listed(labels)}, the labels of {origin}; "
                    "mend the row, or remove it"
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
        return (1, float(label), label)
    except ValueError:
        return (2, 0.0, label)
