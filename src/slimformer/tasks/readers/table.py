"""What every reader gives: rows that know the file and the line they come from."""

from __future__ import annotations

import gzip
import io
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from slimformer.errors import DataError
from slimformer.files import START, conversion, open_file, why_no_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

#: Labelled data are held in memory: so many bytes, unpacked, and so many lines or rows a file may have.
MOST_BYTES, MOST_ROWS = 2**31, 20_000_000
_MARK = b"\xef\xbb\xbf"
_CHUNK = 2**20


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
    """The rows of one file, with the columns they share.

    Args:
        file: The file.
        columns: Their names.
        rows: The rows.
        header: Whether the names stand in the first line, which could be data taken for names.
        label_names: Label as the rows spell it → its name, where a file beside this one tells.
        notes: What a user should know, in words.
    """

    file: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    header: bool = False
    label_names: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.rows:
            raise DataError(f"`{self.file}` holds no rows; give a file with at least one record")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file open for reading, unpacked when its name ends in `.gz`; whatever fails becomes a `DataError`."""
    try:
        with open_file(path) as file:
            if path.suffix == ".gz":
                yield cast("BinaryIO", gzip.GzipFile(fileobj=file))
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"`{path}` is not a whole gzip file: {error}; copy it again") from error
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {error.strerror}; check the path and its permissions") from error


def check_size(path: Path) -> None:
    """Refuse an empty file and one that is too large to be held in memory; only a packed one is read through."""
    with opened(path) as stream:
        if path.suffix == ".gz":
            size = 0
            while size <= MOST_BYTES and (chunk := stream.read(_CHUNK)):
                size += len(chunk)
        else:
            size = stream.seek(0, io.SEEK_END)
    if not size:
        raise DataError(f"`{path}` is empty; give a file with at least one record")
    refuse_large(str(path), size, 0)


def refuse_large(name: str, size: int, rows: int) -> None:
    """Refuse more bytes or rows than are held in memory."""
    for count, most, unit in ((size, MOST_BYTES, "bytes"), (rows, MOST_ROWS, "rows")):
        if count > most:
            raise DataError(f"`{name}` has more than {most:,} {unit}, which labelled data may have; give a part of it")


def read_bytes(path: Path) -> bytes:
    """Read a whole file, unpacking it when its name ends in `.gz`; an empty file is an error."""
    check_size(path)
    with opened(path) as stream:
        return stream.read()


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a whole file as text, without its byte order mark and otherwise untouched."""
    return "".join(stream_lines(path, encoding, newline="\n"))


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Read a file as lines, without their ends.

    Only a line feed, with or without a carriage return, ends a line: `str.splitlines` would also cut at form
    feeds and at the Unicode separators that occur inside real sentences.
    """
    for line in stream_lines(path, encoding, newline="\n"):
        yield line.removesuffix("\n").removesuffix("\r")


def stream_lines(path: Path, encoding: str = "utf-8", *, newline: str = "") -> Iterator[str]:
    """Read a file line by line, with their ends, in the memory of one line.

    Args:
        path: The file; `.gz` is unpacked.
        encoding: What the bytes mean.
        newline: What ends a line, as `open` takes it.
    """
    check_size(path)
    blank = True
    with opened(path) as stream:
        start = stream.read(START)
        reason = why_no_text(start)
        if reason is not None:
            raise DataError(f"`{path}` {reason}")
        stream.seek(len(_MARK) if start.startswith(_MARK) else 0)
        try:
            for number, line in enumerate(_whole_lines(path, stream, encoding, newline), start=1):
                if number > MOST_ROWS:
                    refuse_large(str(path), 0, number)
                blank = blank and not line.strip()
                yield line
        except UnicodeDecodeError as error:
            raise DataError(_not_text(path, encoding)) from error
    if blank:
        raise DataError(f"`{path}` holds only blank space; give a file with at least one record")


def _whole_lines(path: Path, stream: BinaryIO, encoding: str, newline: str) -> Iterator[str]:
    """The lines of a stream; a NUL, which no text holds, ends them before what follows it fills the memory."""
    text = io.TextIOWrapper(stream, encoding, newline=newline)
    number, pieces = 1, []
    while piece := text.readline(_CHUNK):
        if "\0" in piece:
            raise DataError(
                f"`{path}` line {number} holds a NUL byte, which no text does; the file is cut, or is no text: "
                "copy it again"
            )
        pieces.append(piece)
        if len(piece) < _CHUNK or piece.endswith("\n"):
            yield "".join(pieces)
            number, pieces = number + 1, []
    if pieces:
        yield "".join(pieces)


def _not_text(path: Path, encoding: str) -> str:
    """Which byte is no text: the decoder, which is ahead of the lines, does not tell."""
    with opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            content = line.removeprefix(_MARK) if number == 1 else line
            try:
                content.decode(encoding)
            except UnicodeDecodeError as error:
                return (
                    f"`{path}` line {number} is not UTF-8: byte `0x{content[error.start]:02x}` at position "
                    f"{error.start + 1} of the line; {conversion('latin1')}"
                )
    return f"`{path}` is not UTF-8; {conversion('latin1')}"
