"""CSV and TSV files.

TSV is read as GLUE writes it, without quotes, so that a line is a record and byte ranges do. In CSV a quoted field may
hold line ends, so one scan notes where records begin; it meets every record, and whatever is wrong is an error then.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from slimformer.corpus.compressed.unpacking import is_compressed
from slimformer.corpus.lines import LINE_END, ByteRanges, RangedFile, begin_of, first_line
from slimformer.corpus.source import (
    RECORD_LIMIT,
    Fault,
    OnFault,
    Piece,
    Source,
    SourceFile,
    check_names,
    decode,
    opened,
    size_of,
    text_column_of,
)
from slimformer.errors import DataError, shorten
from slimformer.files import CsvRows, csv_reason, why_one_column
from slimformer.tasks.readers.delimited import looks_headerless

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TabbedLines(RangedFile):
    """A TSV file; the text is one of its fields."""

    names: tuple[str, ...]
    field: int

    def _document(self, byte: int, text: str, on_fault: OnFault) -> str:
        fields = text.split("\t")
        if len(fields) == len(self.names):
            return fields[self.field]
        if text:
            on_fault(Fault(str(self.file.path), _ragged(fields, len(self.names)), "mend the line", byte))
        return ""

    def _reading(self) -> int:
        return self.field


@dataclass(frozen=True, slots=True)
class QuotedRecords(Source):
    """A CSV file; the text is one of its fields."""

    file: SourceFile
    borders: NDArray[np.int64]
    names: tuple[str, ...]
    field: int
    header: bool = True

    def sizes(self) -> list[int]:
        """Bytes of each segment."""
        return [int(size) for size in np.diff(self.borders)]

    def read(self, segment: int, on_fault: OnFault) -> Iterator[str]:
        """The documents of one segment."""
        begin, end = self.borders[segment : segment + 2].tolist()
        with opened(self.file.path) as file:
            file.seek(begin)
            content = file.read(end - begin)
        return self.documents_in(begin, content, on_fault)

    def documents_in(self, begin: int, content: bytes, on_fault: OnFault) -> Iterator[str]:
        """The documents of bytes that begin and end where a record does."""
        text = decode(content, str(self.file.path), on_fault, byte=begin)
        # newline="" leaves line ends inside quoted fields as they are.
        for fields in CsvRows(io.StringIO(text, newline="")):
            if len(fields) == len(self.names) and fields[self.field].strip():
                yield fields[self.field]

    def stamp(self) -> bytes:
        """When the file was last written."""
        return self.file.stamp()

    def identity(self) -> Iterator[bytes]:
        """What the file is and which column is read."""
        yield from self.file.identity()
        yield f"QuotedRecords {self.field}".encode()


def open_tsv(file: SourceFile, text_column: str | None, step: int, header: bool = True) -> TabbedLines:
    """A TSV file; its first line names the columns, or their numbers do."""
    path = file.path
    byte, first = first_line(path)
    names = _names(path, first.split("\t"), text_column, header)
    field = names.index(text_column_of(names, str(path), text_column))
    with opened(path) as content:
        content.seek(byte)
        if header:
            content.readline()
        begin = content.tell()
        record = content.readline(RECORD_LIMIT).decode(errors="replace").rstrip("\r\n")
    if header and (reason := why_one_column(names, record.split("\t"), "\t")):
        raise DataError(f"`{path}` {reason}")
    ranges = ByteRanges(path, begin, size_of(path), step, LINE_END, RECORD_LIMIT)
    return TabbedLines(file, ranges, tuple(names), field)


def open_csv(file: SourceFile, text_column: str | None, step: int, header: bool = True) -> QuotedRecords:
    """A CSV file; its first record names the columns, or their numbers do."""
    records = _records(file.path)
    first = next(records, (0, [""]))
    fields = [name.encode("latin-1").decode(errors="replace") for name in first[1]]
    names = _names(file.path, fields, text_column, header)
    field = names.index(text_column_of(names, str(file.path), text_column))
    if is_compressed(file.path):
        return QuotedRecords(file, np.empty(0, np.int64), tuple(names), field, header)
    records = records if header else chain([first], records)
    borders = [*_borders(file.path, records, names, step), size_of(file.path)]
    return QuotedRecords(file, np.array(borders, np.int64), tuple(names), field, header)


def csv_pieces(records: QuotedRecords, step: int) -> Iterator[Piece]:
    """The bytes of segments of about `step` bytes of a file that is read forwards: once to find them, once for them."""
    path = records.file.path
    scanned = _records(path)
    if records.header:
        next(scanned, None)
    borders = _borders(path, scanned, records.names, step)
    with opened(path) as file:
        for begin, end in pairwise(chain[int | None](borders, [None])):
            assert begin is not None
            file.seek(begin)
            content = file.read(-1 if end is None else end - begin)
            yield Piece(len(content), begin, content)


def _names(path: Path, fields: list[str], text_column: str | None, header: bool) -> list[str]:
    """What the columns are called."""
    if not header:
        return [str(number) for number in range(len(fields))]
    if text_column not in fields and looks_headerless(fields, ()):
        raise DataError(
            f"`{path}` looks like a file without a header: its first line begins `{shorten(fields[0], 40)}`; give "
            "`--no-header`, and with `--text-column` the number of the text's column, from 0"
        )
    return check_names(fields, str(path))


def _borders(path: Path, records: Iterator[tuple[int, list[str]]], names: Sequence[str], step: int) -> Iterator[int]:
    """Where segments of about `step` bytes begin."""
    last: int | None = None
    width = len(names)
    for byte, fields in records:
        if last is None and (reason := why_one_column(names, fields, ",")):
            raise DataError(f"`{path}` {reason}")
        if len(fields) != width:
            raise DataError(f"`{path}` byte {byte}: the record {_ragged(fields, width)}; mend it")
        if last is None or byte - last >= step:
            yield (last := byte)


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Every record with the byte it begins at; bytes pass as Latin-1, because only ASCII has a meaning here."""
    with opened(path) as file:
        file.seek(begin_of(path))
        begin = file.tell()
        reader = CsvRows(_lines(path, file), RECORD_LIMIT, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise DataError(
                    f"`{path}` line {line} is not valid CSV: {csv_reason(error)}; "
                    'enclose the field in double quotes and write a quote inside it as ""'
                ) from error
            if fields:
                yield begin, fields
            begin = file.tell()


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    while line := file.readline(RECORD_LIMIT):
        if len(line) == RECORD_LIMIT and not line.endswith(b"\n"):
            raise DataError(f"`{path}` has a line of more than {RECORD_LIMIT:,} bytes; split it")
        yield line.decode("latin-1")


def _ragged(fields: list[str], width: int) -> str:
    return f"has {len(fields)} fields where {width} are expected: it begins `{fields[0][:40]}`"
