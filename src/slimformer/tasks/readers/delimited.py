"""CSV and TSV files."""

from __future__ import annotations

import csv
import re
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError, shorten
from slimformer.files import CsvRows, csv_reason, why_one_column
from slimformer.tasks.readers.table import Row, Table, read_lines, stream_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: Ways of writing tables → whether double quotes enclose fields.
QUOTING = {"csv": True, "none": False}
#: Names of columns are hardly longer, and have hardly more words.
_MOST_NAME, _MOST_WORDS = 60, 6
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?").fullmatch
_ENCLOSED = re.compile(r'"[^"]*(?:""[^"]*)*"').fullmatch

#: A record and the line it begins at.
Record = tuple[int, list[str]]


def table_options(header: bool | None = None, quoting: str | None = None) -> dict[str, Any]:
    """What the reader of somebody's own CSV and TSV files is told, where it is not as usual.

    Args:
        header: Whether the first line names the columns; they do unless told otherwise.
        quoting: Whether double quotes enclose fields: a name of `QUOTING`; by default in CSV alone.
    """
    if quoting is not None and quoting not in QUOTING:
        raise DataError(f"quoting `{quoting}` is not known; give {' or '.join(QUOTING)}")
    options: dict[str, Any] = {} if header in (None, True) else {"header": False}
    return options if quoting is None else {**options, "quoted": QUOTING[quoting]}


def read_delimited(
    path: Path,
    *,
    delimiter: str,
    quoted: bool,
    columns: Sequence[str] | None = None,
    header: bool = True,
    skip_ragged: bool = False,
    encoding: str = "utf-8",
) -> Table:
    """Read a file of separated fields.

    Args:
        path: The file; `.gz` is unpacked.
        delimiter: What stands between two fields.
        quoted: Whether double quotes enclose fields (CSV). GLUE's TSV files hold bare quotes inside
            sentences and have to be read without.
        columns: The column names, when the file has no header line and they are known.
        header: Whether the first line names the columns; else they are called by their numbers, from 0.
        skip_ragged: Leave out records with too few or too many fields instead of refusing the file.
        encoding: What the bytes mean.
    """
    records = (_quoted_records if quoted else _bare_records)(path, delimiter, encoding)
    header = header and columns is None
    if columns is None:
        first = next(records, (1, [""]))
        names = _header(path, first[1]) if header else [str(number) for number in range(len(first[1]))]
        records = records if header else chain([first], records)
    else:
        names = list(columns)
    rows: list[Row] = []
    for line, fields in records:
        if not rows and header and (reason := why_one_column(names, fields, delimiter)):
            raise DataError(f"`{path}` {reason}")
        if len(fields) != len(names):
            if skip_ragged:
                continue
            raise DataError(_ragged(path, line, fields, names, delimiter if quoted else None))
        rows.append(Row(dict(zip(names, fields, strict=True)), str(path), line))
    if not rows and header:
        raise DataError(f"`{path}` {_why_no_rows(delimiter.join(names))}")
    notes = () if quoted or columns is not None else _quotes_kept(path, names, rows)
    return Table(str(path), tuple(names), rows, header=header, notes=notes)


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
        raise DataError(
            f"`{path}` line 1 names column `{twice[0]}` twice; give every column its own name, or `--no-header` if the "
            "line is data"
        )
    return names


def looks_headerless(names: Sequence[str], rows: Sequence[Row]) -> bool:
    """Whether a first line that was taken for names of columns looks like data.

    It does if a name is as long as a text, is a number, or occurs below itself, as a label does.
    """
    if any(len(name) > _MOST_NAME or len(name.split()) > _MOST_WORDS or _NUMBER(name) for name in names):
        return True
    return any(name and row.values.get(name) == name for row in rows for name in names)


def _quotes_kept(path: Path, names: Sequence[str], rows: Sequence[Row]) -> tuple[str, ...]:
    """Say of a column read without quotes that all of its fields stand in some, which a CSV writer put there."""
    return tuple(
        f"every field of column `{name}` of `{path}` stands in double quotes, which are kept; "
        "give `--quoting csv` to take them off"
        for name in names
        if rows and all(_ENCLOSED(row.values[name]) for row in rows)
    )


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
    if quotable is None and any(field.startswith('"') for field in fields):
        quotes = ", or give `--quoting csv` if double quotes enclose its fields"
    return (
        f"`{path}` line {line} has {len(fields)} fields where {len(names)} are expected ({listed}); "
        f"it begins `{fields[0][:40]}`: mend the line{quotes}"
    )
