"""CSV and TSV files."""

from __future__ import annotations

import csv
from collections import Counter
from typing import TYPE_CHECKING

from slimformer.errors import DataError, shorten
from slimformer.files import CsvRows, csv_reason, why_one_column
from slimformer.tasks.readers.table import Row, Table, read_lines, stream_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: A record and the line it begins at.
Record = tuple[int, list[str]]


def read_delimited(
    path: Path,
    *,
    delimiter: str,
    quoted: bool,
    columns: Sequence[str] | None = None,
    skip_ragged: bool = False,
    encoding: str = "utf-8",
) -> Table:
    """Read a file of separated fields.

    Args:
        path: The file; `.gz` is unpacked.
        delimiter: What stands between two fields.
        quoted: Whether double quotes enclose fields (CSV). GLUE's TSV files hold bare quotes inside
            sentences and have to be read without.
        columns: The column names, when the file has no header line.
        skip_ragged: Leave out records with too few or too many fields instead of refusing the file.
        encoding: What the bytes mean.
    """
    records = (_quoted_records if quoted else _bare_records)(path, delimiter, encoding)
    names = list(columns) if columns is not None else _header(path, next(records, (1, [""]))[1])
    rows: list[Row] = []
    for line, fields in records:
        if not rows and columns is None and (reason := why_one_column(names, fields, delimiter)):
            raise DataError(f"`{path}` {reason}")
        if len(fields) != len(names):
            if skip_ragged:
                continue
            raise DataError(_ragged(path, line, fields, names, delimiter if quoted else None))
        rows.append(Row(dict(zip(names, fields, strict=True)), str(path), line))
    if not rows and columns is None:
        raise DataError(f"`{path}` {_why_no_rows(delimiter.join(names))}")
    return Table(str(path), tuple(names), rows)


def _bare_records(path: Path, delimiter: str, encoding: str) -> Iterator[Record]:
    for number, line in enumerate(read_lines(path, encoding), start=1):
        if line:
            yield number, line.split(delimiter)


def _quoted_records(path: Path, delimiter: str, encoding: str) -> Iterator[Record]:
    # Line ends inside quoted fields stay as they are.
    reader = CsvRows(stream_lines(path, encoding), delimiter=delimiter, strict=True)
    begins = 1
    try:
        for fields in reader:
            if fields:
                yield begins, fields
            begins = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"`{path}` line {begins} is not valid CSV: {csv_reason(error)}; "
            'enclose the field in double quotes and write a quote inside it as ""'
        ) from error


def _header(path: Path, fields: Sequence[str]) -> list[str]:
    names = [field.strip() for field in fields]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"`{path}` line 1 names column `{twice[0]}` twice; give every column its own name")
    return names


def _why_no_rows(line: str) -> str:
    if "\r" in line:
        return "ends its lines with carriage returns alone; convert the file, for example with: tr '\\r' '\\n'"
    return (
        f"holds no rows: its only line, `{shorten(line, 60)}`, is taken for the names of columns; give a header and at "
        "least one record below it"
    )


def _ragged(path: Path, line: int, fields: Sequence[str], names: Sequence[str], quotable: str | None) -> str:
    """What is wrong with a record; `quotable` is the delimiter that a field may hold between double quotes."""
    listed = ", ".join(f"`{name}`" for name in names)
    quotes = f"; text that holds `{quotable}` stands in double quotes" if quotable and len(fields) > len(names) else ""
    return (
        f"`{path}` line {line} has {len(fields)} fields where {len(names)} are expected ({listed}); "
        f"it begins `{fields[0][:40]}`: mend the line{quotes}"
    )
