"""Cutting a file into byte ranges that begin where a document begins, without reading it through."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from slimformer.corpus.source import (
    RECORD_LIMIT,
    Fault,
    OnFault,
    Source,
    SourceFile,
    decode,
    opened,
    refuse,
    size_of,
    text_column_of,
)
from slimformer.errors import DataError
from slimformer.files import JsonError, parse_json
from slimformer.tasks.columns import listed_columns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What stands between two documents.
LINE_END = re.compile(rb"\n")
BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")
FIRST_LOOK = 2**16


@dataclass(frozen=True, slots=True)
class ByteRanges:
    """The ranges of a file: about `step` bytes each, every byte in exactly one.

    Range k begins with the first document that begins at or after byte `begin + k * step`. If none does within
    `reach` bytes, a single document covers them all, and it is cut there, between two words or characters. Both
    neighbours of a border work it out from the bytes behind it, so no range depends on another.

    Args:
        path: The file.
        begin: Where the first document begins.
        end: Where the file ended when it was opened; what is appended later is not read.
        step: Bytes from one border to the next.
        border: What stands between two documents.
        reach: How far to look for it; `step` bounds every range by twice that.
    """

    path: Path
    begin: int
    end: int
    step: int
    border: re.Pattern[bytes]
    reach: int

    def sizes(self) -> list[int]:
        """Bytes from each border to the next."""
        starts = range(self.begin, self.end, self.step)
        return [min(self.step, self.end - start) for start in starts]

    def read(self, number: int) -> tuple[int, bytes]:
        """Where a range begins, and its bytes."""
        with opened(self.path) as file:
            first, last = self._cut(file, number), self._cut(file, number + 1)
            file.seek(first)
            return first, file.read(last - first)

    def _cut(self, file: BinaryIO, number: int) -> int:
        place = self.begin + number * self.step
        if number == 0 or place >= self.end:
            return min(place, self.end)
        # From one byte before: a document begins right here if a line ends there.
        start, stop = place - 1, min(self.end, place - 1 + self.reach)
        file.seek(start)
        window = file.read(min(FIRST_LOOK, stop - start))
        while (found := self.border.search(window)) is None:
            more = file.read(min(len(window), stop - start - len(window)))
            if not more:
                break
            window += more
        if found is not None:
            return start + found.end()
        return self.end if stop == self.end else place + to_next_word(window[1:])


def to_next_word(content: bytes) -> int:
    """Bytes until a blank or, where there is none, until a UTF-8 character begins, which takes three at most."""
    blank = content.find(b" ")
    return blank if blank >= 0 else next((at for at, byte in enumerate(content[:3]) if byte & 0xC0 != 0x80), 3)


#: What a document of a text file is: a line, or what stands between blank lines.
Documents = Literal["lines", "paragraphs"]
_MARK = b"\xef\xbb\xbf"
_PEEK = 2**12
_OBJECTS = "write one object a line"


@dataclass(frozen=True, slots=True)
class RangedFile(Source):
    """A file whose documents can be told apart from anywhere in it."""

    file: SourceFile
    ranges: ByteRanges

    def sizes(self) -> list[int]:
        """Bytes of each segment."""
        return self.ranges.sizes()

    def read(self, segment: int, on_fault: OnFault) -> Iterator[str]:
        """The documents of one byte range."""
        return self.documents_in(*self.ranges.read(segment), on_fault)

    def documents_in(self, begin: int, content: bytes, on_fault: OnFault) -> Iterator[str]:
        """The documents of bytes that begin and end where a document does."""
        for byte, raw in self._pieces(begin, content):
            document = self._document(byte, decode(raw, str(self.file.path), on_fault, byte=byte), on_fault)
            if document.strip():
                yield document

    def stamp(self) -> bytes:
        """When the file was last written."""
        return self.file.stamp()

    def identity(self) -> Iterator[bytes]:
        """What the file is and how it is read."""
        yield from self.file.identity()
        yield repr((type(self).__name__, self._reading())).encode()

    def _pieces(self, begin: int, content: bytes) -> Iterator[tuple[int, bytes]]:
        for piece in content.split(b"\n"):
            yield begin, piece.rstrip(b"\r")
            begin += len(piece) + 1

    @abstractmethod
    def _document(self, byte: int, text: str, on_fault: OnFault) -> str:
        """The document a piece holds; an empty one when it holds none."""

    def _reading(self) -> Any:
        """The settings that change what is read."""
        return None


@dataclass(frozen=True, slots=True)
class TextLines(RangedFile):
    """A text file of which every line is a document."""

    def _document(self, byte: int, text: str, on_fault: OnFault) -> str:
        return text


@dataclass(frozen=True, slots=True)
class TextParagraphs(RangedFile):
    """A text file in which blank lines part the documents."""

    def _pieces(self, begin: int, content: bytes) -> Iterator[tuple[int, bytes]]:
        start = 0
        for border in BLANK_LINE.finditer(content):
            yield begin + start, content[start : border.start()]
            start = border.end()
        yield begin + start, content[start:]

    def _document(self, byte: int, text: str, on_fault: OnFault) -> str:
        return " ".join(line.strip() for line in text.split("\n") if line.strip())


@dataclass(frozen=True, slots=True)
class JsonLines(RangedFile):
    """A file with a JSON object a line; one key of it holds the text."""

    column: str

    def _document(self, byte: int, text: str, on_fault: OnFault) -> str:
        if not text.strip():
            return ""
        try:
            return _text_in(_object_in(text), self.column)
        except _BadLine as error:
            on_fault(Fault(str(self.file.path), error.what, error.mend, byte))
            return ""

    def _reading(self) -> str:
        return self.column


def open_text(file: SourceFile, documents: Documents, step: int) -> RangedFile:
    """A text file."""
    if documents == "lines":
        return TextLines(file, _ranges(file.path, step))
    return TextParagraphs(file, ByteRanges(file.path, begin_of(file.path), size_of(file.path), step, BLANK_LINE, step))


def open_json_lines(file: SourceFile, text_column: str | None, step: int) -> RangedFile:
    """A file of JSON objects; the first line says which keys there are."""
    byte, line = first_line(file.path)
    if line.lstrip().startswith("["):
        raise DataError(f"`{file.path}` holds one JSON array, which cannot be read in parts; {_OBJECTS}")
    try:
        columns = tuple(_object_in(line))
    except _BadLine as error:
        refuse(Fault(str(file.path), error.what, error.mend, byte))
    column = text_column_of(columns, str(file.path), text_column)
    return JsonLines(file, _ranges(file.path, step, reach=RECORD_LIMIT), column)


def holds_json(path: Path) -> bool:
    """Tell whether a text file is JSON Lines by its first line, which need not be a short one."""
    with opened(path) as file:
        if not file.read(_PEEK).removeprefix(_MARK).lstrip().startswith(b"{"):
            return False
    try:
        return bool(_object_in(first_line(path)[1]))
    except _BadLine:
        return False


def first_line(path: Path) -> tuple[int, str]:
    """Where the first line that is not blank begins, and the line; an empty one if there is none."""
    byte = begin_of(path)
    with opened(path) as file:
        file.seek(byte)
        while line := file.readline(RECORD_LIMIT):
            if line.strip():
                return byte, line.decode(errors="replace").rstrip("\r\n")
            byte += len(line)
    return byte, ""


def begin_of(path: Path) -> int:
    """Where the text of a file begins: after its byte order mark."""
    with opened(path) as file:
        return len(_MARK) if file.read(len(_MARK)) == _MARK else 0


def _ranges(path: Path, step: int, reach: int | None = None) -> ByteRanges:
    return ByteRanges(path, begin_of(path), size_of(path), step, LINE_END, reach or step)


class _BadLine(Exception):  # noqa: N818
    """A line that holds no text, why, and what to do."""

    def __init__(self, what: str, mend: str = _OBJECTS) -> None:
        super().__init__(what)
        self.what, self.mend = what, mend


def _object_in(line: str) -> dict[str, Any]:
    try:
        value = parse_json(line, halves=True)
    except JsonError as error:
        raise _BadLine(f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise _BadLine(f"holds a {type(value).__name__}, not an object")
    return value


def _text_in(values: dict[str, Any], column: str) -> str:
    if column not in values:
        raise _BadLine(f"has no column `{column}`: it has {listed_columns(list(values))}", "mend the line")
    value = values[column]
    if value is not None and not isinstance(value, str):
        raise _BadLine(
            f"holds `{str(value)[:40]}` in column `{column}` and no text", "mend the line, or choose with text_column"
        )
    return _whole_characters(value or "")


def _whole_characters(text: str) -> str:
    """Text without halves of characters, lone surrogates, which JSON can hold and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
