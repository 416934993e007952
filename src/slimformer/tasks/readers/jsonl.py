"""JSON Lines: one object a line. A file that holds one JSON array of objects is read too."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError, describe
from slimformer.files import JsonError, parse_json
from slimformer.tasks.readers.table import Row, Table, read_lines

if TYPE_CHECKING:
    from pathlib import Path


def read_jsonl(path: Path) -> Table:
    """Read a JSON Lines file; the columns are the keys of any object, in order of appearance.

    What an object lacks is None, as in a table where a cell is empty.
    """
    lines = read_lines(path)
    first = next(lines)
    lines = chain([first], lines)
    if first.lstrip().startswith("["):
        rows = _array(path, "\n".join(lines))
    else:
        rows = [_row(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    columns = tuple(dict.fromkeys(key for row in rows for key in row.values))
    empty = dict.fromkeys(columns)
    whole = [row if len(row.values) == len(columns) else replace(row, values={**empty, **row.values}) for row in rows]
    return Table(str(path), columns, whole)


def _row(path: Path, number: int, line: str) -> Row:
    try:
        value = parse_json(line, repeats=False)
    except JsonError as error:
        raise DataError(f"`{path}` line {number} is not valid JSON: {error}; write one object a line") from error
    return Row(_checked(path, number, value), str(path), number)


def _array(path: Path, text: str) -> list[Row]:
    try:
        values = parse_json(text, repeats=False)
    except JsonError as error:
        raise DataError(f"`{path}` line {error.line} is not valid JSON: {error}; mend the array") from error
    return [Row(_checked(path, number, value), str(path), number) for number, value in enumerate(values, start=1)]


def _checked(path: Path, number: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f"`{path}` line {number} holds `{describe(value)}`, not an object; "
            'write one object a line, such as {"text": "...", "label": "..."}'
        )
    return value
