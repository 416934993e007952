"""Requests from a file or from standard input, line by line and in chunks: a file of any size takes little memory."""

from __future__ import annotations

import csv
import gzip
import sys
import zlib
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from slimformer.errors import DataError
from slimformer.files import (
    START,
    TABLES,
    CsvRows,
    JsonError,
    as_path,
    csv_reason,
    open_file,
    parse_json,
    why_no_text,
    why_one_column,
)
from slimformer.inference.codec import ORIGIN, TaskRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.splits import Example

#: Stands for standard input.
STDIN = "-"
#: Pipes that have their writer already, such as a shell's `<(command)`.
OPEN_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
#: No text is longer; a file without line breaks would fill the memory.
MAX_LINE = 1 << 24
#: Characters of requests in memory at a time: their tokens take some forty times as many bytes.
CHARACTERS = 1 << 21
_BOM = b"\xef\xbb\xbf"

#: A line that was read, with its number: its text, or why it has none.
Line = tuple[int, str, str | None]


def given_requests(texts: Sequence[str]) -> Iterator[TaskRequest]:
    """Requests as they stand on a command line: texts, or JSON objects."""
    for number, text in enumerate(texts, start=1):
        content: Any = text
        if text.lstrip().startswith("{"):
            try:
                content = parse_json(text, repeats=False)
            except JsonError:
                content = text
        yield TaskRequest(content, ORIGIN, number)


@contextmanager
def open_requests(source: str | Path) -> Iterator[Iterator[TaskRequest]]:
    """The requests in a file, or in standard input for `-`; lines that cannot be read come as requests that say why.

    `.jsonl`, `.ndjson` and `.json` hold a JSON value a line; `.csv` (with quotes) and `.tsv` (without) name their
    columns in the first line; anything else is a text a line, unless it begins with `{`.

    Example:
        >>> with open_requests("reviews.jsonl") as requests:
        ...     for reply in pipeline.stream(requests):
        ...         print(reply)
    """
    name = str(source)
    with _opened(name) as stream:
        yield _requests(name, stream)


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name == STDIN:
        if sys.stdin is None:
            raise DataError("standard input is closed; give a file of requests, or open it")
        yield sys.stdin.buffer
        return
    path = as_path(name)
    try:
        file = path.open("rb") if str(path).startswith(OPEN_PIPES) else open_file(path)
    except FileNotFoundError:
        raise DataError(f"no file at `{name}`; give a file of requests, or `-` for standard input") from None
    except OSError as error:
        raise _unreadable(name, error) from error
    # What goes wrong while the file is open need not be its fault: reading has its own errors, in `_lines`.
    with file:
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def _unreadable(name: str, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or str(error)
    return DataError(f"`{name}` cannot be read: {reason}; give a file of requests, or `-` for a pipe")


def _requests(name: str, stream: IO[bytes]) -> Iterator[TaskRequest]:
    file = "standard input" if name == STDIN else name
    suffix = Path(name.removesuffix(".gz")).suffix.lower()
    written = TABLES.get(suffix)
    lines = _lines(file, stream)
    if written in ("csv", "tsv"):
        yield from _table(file, lines, quoted=written == "csv")
        return
    first = next(lines, None)
    if first is None:
        raise DataError(f"`{file}` is empty; give at least one line")
    begin = first[1].lstrip()[:1]
    if suffix == ".json" and begin == "[":
        raise DataError(f"`{file}` holds one JSON array; write one object a line")
    as_json = written == "jsonl" or begin == "{"
    for number, text, error in _chain(first, lines):
        yield _json_request(file, number, text, error) if as_json else _text_request(file, number, text, error)


def _text_request(file: str, number: int, text: str, error: str | None) -> TaskRequest:
    if error is None and not text.strip():
        error = "the line is empty; every line is one request"
    return TaskRequest(text, file, number, error)


def _json_request(file: str, number: int, text: str, error: str | None) -> TaskRequest:
    if error is not None:
        return TaskRequest(None, file, number, error)
    try:
        return TaskRequest(parse_json(text, repeats=False), file, number)
    except JsonError as reason:
        return TaskRequest(None, file, number, f"not valid JSON: {reason}; write one object a line")


def _table(file: str, lines: Iterator[Line], *, quoted: bool) -> Iterator[TaskRequest]:
    """The rows of a table, each an object by its columns; the line of a row is that of its end."""
    broken: dict[int, str] = {}

    def texts() -> Iterator[str]:
        for number, text, error in lines:
            if error is not None:
                broken[number] = error
            yield f"{text}\n"

    options: dict[str, Any] = {"strict": True} if quoted else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    rows = CsvRows(texts(), MAX_LINE, **options)
    columns = _columns(file, rows)
    count = 0
    while True:
        begin = rows.line_num + 1
        try:
            values = next(rows, None)
            reason = None
        except csv.Error as error:
            values, reason = [], f"not a row of a table: {csv_reason(error)}; mend it"
        if values is None:
            break
        if not count and (other := why_one_column(columns, values, "," if quoted else "\t")):
            raise DataError(f"`{file}` {other}")
        count += 1
        unread = [broken.pop(number) for number in range(begin, rows.line_num + 1) if number in broken]
        if reason is None and len(values) != len(columns):
            reason = f"{len(values)} fields where {len(columns)} are expected ({', '.join(columns)}); mend the row"
        content = values[0] if len(columns) == 1 and values else dict(zip(columns, values, strict=False))
        yield TaskRequest(content, file, begin, unread[0] if unread else reason)
    if not count:
        raise DataError(f"`{file}` holds no rows below the names of its columns; give at least one")


def _columns(file: str, rows: Iterator[list[str]]) -> list[str]:
    """The names of columns, which stand in the first row."""
    try:
        columns = next(rows, None)
    except csv.Error as error:
        raise DataError(f"the first line of `{file}` names no columns: {error}; mend it") from error
    if columns is None:
        raise DataError(f"`{file}` is empty; its first line names the columns")
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise DataError(f"`{file}` names column `{twice[0]}` twice; give every column its own name")
    return columns


def _lines(file: str, stream: IO[bytes]) -> Iterator[Line]:
    """Lines with their numbers, without their ends; where a file breaks off, the last one says so."""
    number = 0
    while True:
        number += 1
        try:
            raw, too_long = _line(stream)
        except (OSError, EOFError, zlib.error) as error:
            if number == 1:
                raise _unreadable(file, error) from error
            yield number, "", f"the file cannot be read from here on: {error}; copy it again"
            return
        if not raw:
            return
        if number == 1:
            reason = why_no_text(raw[:START])
            if reason is not None:
                raise DataError(f"`{file}` {reason}")
            raw = raw.removeprefix(_BOM)
        if too_long:
            yield number, "", f"the line is longer than {MAX_LINE:,} bytes; cut it"
            continue
        try:
            yield number, raw.rstrip(b"\r\n").decode(), None
        except UnicodeDecodeError as error:
            byte = raw[error.start]
            yield number, "", f"not UTF-8: byte `0x{byte:02x}` at position {error.start + 1}; convert the file"


def _line(stream: IO[bytes]) -> tuple[bytes, bool]:
    """The next line, or the beginning of one that is too long; empty at the end."""
    raw = stream.readline(MAX_LINE + 1)
    if len(raw) <= MAX_LINE or raw.endswith(b"\n"):
        return raw, False
    while (rest := stream.readline(MAX_LINE)) and not rest.endswith(b"\n"):
        pass
    return raw, True


def _chain(first: Line, rest: Iterable[Line]) -> Iterator[Line]:
    yield first
    yield from rest


class Chunk:
    """Requests that are answered together.

    Args:
        kind: What the model has to do.
        limit: Texts that the model reads for them at most; the first request is taken whatever it takes.
    """

    def __init__(self, kind: Kind, limit: int) -> None:
        self.kind = kind
        self.limit = limit
        #: What is known so far: why a request failed, or None where it waits for its answer.
        self.replies: list[Any] = []
        self.examples: list[Example] = []
        self.origins: list[tuple[str, int]] = []
        self.places: list[int] = []
        self._widest = self._characters = 0

    def has_room(self, example: Example) -> bool:
        """Whether one more can be taken; requests of a chunk are filled up to as many texts as the widest has."""
        rows = max(self._widest, self.kind.rows(example)) * (len(self.examples) + 1)
        fits = rows <= self.limit and self._characters + self._size(example) <= CHARACTERS
        return fits or not self.examples

    def add(self, request: TaskRequest, example: Example) -> None:
        """Take a request."""
        self.places.append(len(self.replies))
        self.replies.append(None)
        self.examples.append(example)
        self.origins.append((request.file, request.line))
        self._widest = max(self._widest, self.kind.rows(example))
        self._characters += self._size(example)

    def _size(self, example: Example) -> int:
        return self.kind.rows(example) * sum(_characters(value) for value in example.values())


def _characters(value: Any) -> int:
    """Characters of a text, or of the texts of a list."""
    if isinstance(value, (list, tuple)):
        return sum(map(_characters, value))
    return len(value) if isinstance(value, str) else 0
