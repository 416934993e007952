"""The one place that opens what a user names, and the one that parses JSON.

Paths, files and JSON come from anywhere. A path may be no path, a file may be a pipe that never ends, and JSON may hold
what Python's parser takes and nothing else does.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from slimformer.errors import PathError, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Halves of characters: JSON and YAML can spell them, UTF-8 and tokenizers know nothing of them.
HALF = re.compile("[\ud800-\udfff]")
_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
#: What a path may lead to besides files.
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
)


def as_path(name: str | Path) -> Path:
    """The path a user names, with `~` replaced; nothing need be there, but something could be."""
    if not str(name):  # to Python it is the current folder, to a user a variable that was not set
        raise PathError("a path is empty; give one, such as `.` for the current folder")
    try:
        path = Path(name).expanduser()
        path.lstat()
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
    kind = next((kind for test, kind in _KINDS if test(mode)), "device")
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
    """What a file is written in that begins so, if that is UTF-16 or UTF-32: by its mark, or by many zero bytes."""
    for mark, name in _WIDE_MARKS:
        if start.startswith(mark):
            return name
    low, high = (start[place::2].count(0) for place in (0, 1))
    if not start or 4 * max(low, high) < len(start):
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
    (b"SQLite format 3", "a database"),
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


def parse_json(text: str | bytes, *, halves: bool = False) -> Any:
    """Parse JSON; whatever is wrong with it is a `JsonError`.

    Args:
        text: The JSON.
        halves: Whether texts may hold halves of characters, because the caller replaces them.
    """
    try:
        content = text if isinstance(text, str) else text.decode()
        value = json.loads(content)
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


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a value of lists and mappings, keys included."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item
