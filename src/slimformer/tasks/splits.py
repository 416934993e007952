"""Splits: their names, the sequence of examples they are, and how one is cut from another."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from slimformer.errors import DataError, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slimformer.tasks.readers import Row

SPLITS = ("train", "dev", "test")

#: What people call the splits in file names and on the Hub.
SYNONYMS = {
    "train": ("train", "training"),
    "dev": ("dev", "validation", "valid", "val", "development", "eval"),
    "test": ("test", "testing"),
}

#: An example: what one kind of task needs to know of one row.
Example = dict[str, Any]

T = TypeVar("T")

#: Shares may add up to so much more or less than 1, as thirds with six digits do.
_ROUNDING = 2e-6


@dataclass(frozen=True)
class Split(Sequence[Example]):
    """The examples of one split, and where each came from.

    Args:
        examples: The examples.
        origins: File and line of each.
    """

    examples: Sequence[Example]
    origins: Sequence[tuple[str, int]]

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        return self.examples[index]

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, rows: Sequence[int]) -> Split:
        """Some of the examples, each as often as it is named."""
        return Split([self.examples[row] for row in rows], [self.origins[row] for row in rows])

    def mapped(self, change: Callable[[Example], Example]) -> Split:
        """The split with every example changed."""
        return Split([change(example) for example in self.examples], self.origins)

    def limited(self, limit: int | None, *, in_order: bool) -> Split:
        """So many examples of it, from its beginning where they follow one another; see `sample`."""
        count = len(self)
        kept = list(range(count))[:limit] if in_order and (limit is None or limit > 0) else sample(count, limit)
        return self.take(kept)

    def at(self, index: int) -> str:
        """Where an example came from, the way every message spells it."""
        file, line = self.origins[index]
        return f"`{file}` line {line}"


def check_splits(splits: Sequence[str]) -> tuple[str, ...]:
    """Check the names of the splits asked for."""
    for split in splits:
        if split not in SPLITS:
            raise DataError(f"split `{split}` is not known; give some of: {', '.join(SPLITS)}")
    if not splits:
        raise DataError(f"no split was asked for; give some of: {', '.join(SPLITS)}")
    return tuple(dict.fromkeys(splits))


def split_in_name(name: str) -> str | None:
    """The split that a file or folder name speaks of, if it speaks of exactly one."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    found = [split for split, synonyms in SYNONYMS.items() if words & set(synonyms)]
    return found[0] if len(found) == 1 else None


def carve_groups(rows: Sequence[T], shares: Mapping[str, float], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Divide rows into splits by the hash of their group; see `slimformer.tasks.preset.Carve`."""
    groups = sorted({key(row) for row in rows}, key=lambda group: hashlib.sha256(group.encode()).digest())
    split_of: dict[str, str] = {}
    begin = 0
    for split, size in _sizes(len(groups), shares).items():
        split_of.update(dict.fromkeys(groups[begin : begin + size], split))
        begin += size
    parts: dict[str, list[T]] = {split: [] for split in shares}
    for row in rows:
        parts[split_of[key(row)]].append(row)
    return parts


def carve_in_order(rows: Sequence[T], shares: Mapping[str, float]) -> dict[str, list[T]]:
    """Divide rows into splits that follow one another, for running text."""
    parts: dict[str, list[T]] = {}
    begin = 0
    for split, size in _sizes(len(rows), shares).items():
        parts[split] = list(rows[begin : begin + size])
        begin += size
    return parts


def parse_shares(shares: str | Sequence[float]) -> dict[str, float]:
    """Split → its part of a file, of two numbers (train, dev) or three (train, dev, test) that add up to 1."""
    numbers = shares.split(",") if isinstance(shares, str) else shares
    example = "such as 0.8,0.1,0.1 for train, dev and test or 0.9,0.1 for train and dev"
    try:
        parts = [float(number) for number in numbers]
    except (TypeError, ValueError):
        parts = []
    if not 2 <= len(parts) <= len(SPLITS) or not all(map(math.isfinite, parts)):
        raise ValueError(f"give two or three numbers, {example}")
    if min(parts) <= 0:
        split = SPLITS[parts.index(min(parts))]
        raise ValueError(f"{min(parts):g} leaves no rows for {split}; give numbers above 0, {example}")
    if not math.isclose(sum(parts), 1, abs_tol=_ROUNDING):
        raise ValueError(f"they add up to {sum(parts):g}, not to 1; give parts of 1, {example}")
    return dict(zip(SPLITS, parts, strict=False))


def check_shares(shares: str | Sequence[float] | None) -> dict[str, float] | None:
    """The shares that a file is to be divided by, if any."""
    try:
        return None if shares is None else parse_shares(shares)
    except ValueError as error:
        raise DataError(f"shares is `{describe(shares)}`: {error}") from None


def sample(count: int, limit: int | None) -> list[int]:
    """Indices of `limit` of `count` rows, in order; a smaller sample is part of a larger one.

    Rows are chosen by a hash of their index and not from the front, because files are often sorted by label.
    """
    if limit is None or limit >= count:
        return list(range(count))
    if limit < 1:
        raise DataError(f"limit `{limit}` leaves no rows; give a number of at least 1")
    return sorted(sorted(range(count), key=lambda index: hashlib.sha256(str(index).encode()).digest())[:limit])


def _sizes(count: int, shares: Mapping[str, float]) -> dict[str, int]:
    """How many of `count` groups each split gets: its share, at least one, the first split the rest."""
    first, *others = shares
    sizes = {split: max(1, round(shares[split] * count)) for split in others}
    rest = count - sum(sizes.values())
    if rest < 1:
        raise DataError(
            f"{count} different rows are too few to cut {', '.join(shares)} from; give a file for each split"
        )
    return {first: rest, **sizes}


def carved_rows(
    rows: Sequence[Row], shares: Mapping[str, float], group: Sequence[str], *, in_order: bool
) -> dict[str, list[Row]]:
    """Divide rows by the values of the `group` columns, or one part after the other for running text."""
    if in_order:
        return carve_in_order(rows, shares)
    return carve_groups(rows, shares, lambda row: _key(row, group))


def without_texts_of(rows: Sequence[Row], others: Sequence[Row], text: Sequence[str]) -> list[Row]:
    """The rows whose texts do not occur among the others."""
    seen = {_key(row, text) for row in others}
    return [row for row in rows if _key(row, text) not in seen]


def count_shared(rows: Sequence[Row], others: Sequence[Row], columns: Sequence[str], other: Sequence[str]) -> int:
    """How many rows have texts that occur among the others, whose columns may bear other names.

    Only the texts of `rows`, mostly the smaller part, are put into a table; nothing is copied.
    """
    texts = [_texts(row, columns) for row in rows]
    shared = set(texts).intersection(_texts(row, other) for row in others)
    return sum(each in shared for each in texts)


def _texts(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    values = (row.values.get(column) for column in columns)
    return tuple(value.strip() if isinstance(value, str) else str(value) for value in values)


def _key(row: Row, columns: Sequence[str]) -> str:
    values = (row.values.get(column) for column in columns)
    # An image says what it is known by; a path would make the division depend on where the data lies.
    return json.dumps([str(getattr(value, "key", value)) for value in values])
