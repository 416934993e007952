"""What every reader gives: rows that know the file and the line they come from."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


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


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacking it when its name ends in `.gz`; an empty file is an error."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz" and content:
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"`{path}` is not a whole gzip file: {error}; copy it again") from error
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {error.strerror}; check the path and its permissions") from error
    if not content:
        raise DataError(f"`{path}` is empty; give a file with at least one record")
    return content


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a whole file as text, without its byte order mark and otherwise untouched."""
    content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(path, content, error)) from error
    if not text.strip():
        raise DataError(f"`{path}` holds only blank space; give a file with at least one record")
    return text


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """Read a file as lines, without their ends.

    Only a line feed, with or without a carriage return, ends a line: `str.splitlines` would also cut at form
    feeds and at the Unicode separators that occur inside real sentences.
    """
    lines = read_text(path, encoding).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _not_utf8(path: Path, content: bytes, error: UnicodeDecodeError) -> str:
    before = content[: error.start]
    line = before.count(b"\n") + 1
    column = error.start - (before.rfind(b"\n") + 1) + 1
    return (
        f"`{path}` line {line} is not UTF-8: byte `0x{content[error.start]:02x}` at position {column} of the line; "
        "convert the file, for example with: iconv -f latin1 -t utf-8"
    )
