"""The one place that opens what a user names, and the one that parses JSON and CSV.

Paths and files come from anywhere. A path may be no path, a file may be a pipe that never ends, JSON may hold what
Python's parser takes and nothing else does, and Python's limit on the fields of CSV belongs to the whole process.
"""

from __future__ import annotations

import codecs
import csv
import errno
import json
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from slimformer.errors import PathError, describe, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: How the names of files of records end → how the records are written.
TABLES: dict[str, Literal["jsonl", "csv", "tsv", "parquet"]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
#: Halves of characters: JSON and YAML can spell them, UTF-8 and tokenizers know nothing of them.
HALF = re.compile("[\ud800-\udfff]")
_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
#: What a path may lead to besides files.
_KINDS = {"folder": stat.S_ISDIR, "pipe": stat.S_ISFIFO, "socket": stat.S_ISSOCK}


def as_path(name: str | Path) -> Path:
    """The path a user names, with `~` replaced; nothing need be there, but something could be."""
    if not isinstance(name, str | Path):
        raise PathError(f"`{describe(name)}` is no path; give a text or a `pathlib.Path`")
    if not str(name):  # to Python it is the current folder, to a user a variable that was not set
        raise PathError("a path is empty; give one, such as `.` for the current folder")
    try:
        path = Path(name).expanduser()
        path.stat()  # through links: a loop of them leads to nothing
    except RuntimeError:
        raise PathError(f"`{name}` begins with a user whose home is not known; write the path without `~`") from None
    except ValueError as error:
        raise PathError(f"`{name}` cannot be a path: {error}; give another one") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            reason = (error.strerror or str(error)).lower()
            raise PathError(f"`{name}` cannot be a path: {reason}; give another one") from None
    return path


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe or a device, which may never begin or never end, is an `OSError`."""
    # Without O_NONBLOCK a pipe waits for somebody to write to it; of a file it changes nothing.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    kind = next((kind for kind, test in _KINDS.items() if test(mode)), "device")
    raise OSError(errno.EINVAL, f"it is a {kind}, not a file", str(path))


def read_limited(path: Path, limit: int) -> bytes:
    """The content of a file; more than `limit` bytes are an `OSError`."""
    with open_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return content


#: Byte order marks of encodings that are not UTF-8, the longer ones first: one begins as another does.
_WIDE_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def wide_encoding(start: bytes) -> str | None:
    """What a file that begins so is written in, if that is UTF-16 or UTF-32: by its mark, or by every second byte."""
    for mark, name in _WIDE_MARKS:
        if start.startswith(mark):
            return name
    low, high = (start[place::2].count(0) for place in (0, 1))
    if 4 * max(low, high) < len(start) or 8 * min(low, high) >= len(start):
        return None
    return "utf-16le" if high > low else "utf-16be"


#: How files begin that are taken for text by a slip of the hand.
_BEGINNINGS = (
    (b"PK\x03\x04", "a zip file or a document packed as one"),
    (b"PAR1", "a Parquet file"),
    (b"%PDF-", "a PDF file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x89PNG\r\n", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"SQLite format 3", "a database"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel or Word document"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x28\xb5\x2f\xfd", "a zstd file"),
    (b"\xfd7zXZ\x00", "an xz file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z file"),
)
#: Bytes by which a file is known.
START = 256


def conversion(encoding: str) -> str:
    """What to do with a file in another encoding than UTF-8."""
    return f"convert the file, for example with: iconv -f {encoding} -t utf-8"


def why_no_text(start: bytes) -> str | None:
    """Why a file that begins so is no text in UTF-8, and what to do; None where it may be one."""
    for beginning, kind in _BEGINNINGS:
        if start.startswith(beginning):
            return f"is {kind}, not text; give the text itself, or the file under its own ending"
    wide = wide_encoding(start)
    return None if wide is None else f"is text in {wide}, not in UTF-8; {conversion(wide)}"


class JsonError(ValueError):
    """A text is not JSON that can be read.

    Args:
        reason: Why, in a few words.
        line: The line of the text.
    """

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.line = line


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of a key that stands there twice Python would keep the last value without a word."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise JsonError(f"key `{describe(twice)}` stands there twice")
    return value


def parse_json(text: str | bytes, *, halves: bool = False, repeats: bool = True) -> Any:
    """Parse JSON; whatever is wrong with it is a `JsonError`.

    Args:
        text: The JSON.
        halves: Whether texts may hold halves of characters, because the caller replaces them.
        repeats: Whether an object may hold a key twice.
    """
    try:
        content = text if isinstance(text, str) else text.decode()
        value = json.loads(content, object_pairs_hook=None if repeats else _without_repeats)
    except JsonError:
        raise
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at character {error.colno}", error.lineno) from None
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start + 1} is not UTF-8") from None
    except RecursionError:
        raise JsonError("it is nested too deeply") from None
    except ValueError:
        raise JsonError("a number in it has thousands of digits") from None
    if not halves and (_HALF_ESCAPE.search(content) or HALF.search(content)):
        for each in texts_in(value):
            if HALF.search(each):
                raise JsonError(f"`{describe(each)}` holds half of a character")
    return value


def read_json(path: Path, limit: int) -> Any:
    """What a JSON file holds; one of more than `limit` bytes is an `OSError`, any other fault a `JsonError`."""
    return parse_json(read_limited(path, limit))


#: What stands between the fields of tables, and what it is called.
DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}


def why_one_column(header: Sequence[str], record: Sequence[str], delimiter: str) -> str | None:
    """Why a table has one column: header and first record are several fields, parted by something else."""
    if len(header) != 1 or len(record) != 1:
        return None
    for other, name in DELIMITERS.items():
        if other != delimiter and header[0].count(other) == record[0].count(other) > 0:
            return (
                f"parts its fields by {name} where {DELIMITERS[delimiter]} are expected, line 1 reads "
                f"`{shorten(header[0], 60)}`; write .csv files with commas and .tsv files with tabs"
            )
    return None


def csv_reason(error: csv.Error) -> str:
    """Why a table cannot be read."""
    text = str(error)
    return "a field in double quotes is not closed" if text == "unexpected end of data" else text


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a value of lists and mappings, keys included."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item


class _LongFields:
    """Lifts the limit on fields while a row is read; the last of several threads to leave puts it back."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._readers = self._before = 0

    def __enter__(self) -> None:
        with self._guard:
            if not self._readers:
                self._before = csv.field_size_limit(2**31 - 1)
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._readers -= 1
            if not self._readers:
                csv.field_size_limit(self._before)


_long_fields = _LongFields()


class CsvRows:
    """The rows of a table, as `csv.reader` reads them, with a limit on rows instead of fields.

    Args:
        lines: The lines of the table, with their ends.
        limit: Characters of a row; more are a `csv.Error`, and the next line begins another row.
        options: As for `csv.reader`.
    """

    def __init__(self, lines: Iterable[str], limit: int | None = None, **options: Any) -> None:
        self._lines = _RowLines(iter(lines), limit)
        self._rows = csv.reader(self._lines, **options)

    @property
    def line_num(self) -> int:
        """Lines that were read."""
        return self._lines.count

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        self._lines.size = 0
        with _long_fields:
            return next(self._rows)


class _RowLines:
    """Lines for a reader, which stop in the middle of a row that is too long; a generator could not go on then."""

    def __init__(self, lines: Iterator[str], limit: int | None) -> None:
        self._lines, self._limit = lines, limit
        self.count = self.size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.count += 1
        self.size += len(line)
        if self._limit is not None and self.size > self._limit:
            raise csv.Error(f"a row of more than {self._limit:,} characters")
        return line
