"""What every reader gives: rows that know the file and the line they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """One record: its values by column, and where it stands.

    Args:
        values: Column name → value, as the file spells it.
        file: The file, or the name of a Hub data set and its split.
        line: Line of the file the record begins at, counted from 1; a record number where a file has no lines.
    """

    values: Mapping[str, Any]
    file: str
    line: int

    def at(self) -> str:
        """Where the row stands, the way every message spells it."""
        return f"`{self.file}` line {self.line}"


@dataclass(frozen=True)
class Table:
    """The rows of one file, with the columns they share."""

    file: str
    columns: tuple[str, ...]
    rows: Sequence[Row]

    def __post_init__(self) -> None:
        if not self.rows:
            raise DataError(f"`{self.file}` holds no rows; give a file with at least one record")
