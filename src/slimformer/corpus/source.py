"""A source: one file or table of a corpus, cut into segments that can be read in any order."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, NoReturn

from slimformer.corpus.compressed.unpacking import is_compressed, unpack
from slimformer.errors import DataError, visible
from slimformer.files import conversion, open_file
from slimformer.tasks.columns import IDS, TEXTS, listed_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: A record (a line of JSON, a row of CSV) may be this many bytes long, so that memory stays bounded.
RECORD_LIMIT = 2**26
#: So much of either end of a file goes into its digest.
_SAMPLE = 2**16


class Source(ABC):
    """Documents in segments: reading all segments gives every document once."""

    #: Whether segments can be read in any order.
    seekable: ClassVar[bool] = True

    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """About how many bytes of text each segment holds."""

    @abstractmethod
    def read(self, segment: int, on_fault: OnFault) -> Iterator[str]:
        """The documents of one segment, in order; none is blank."""

    @abstractmethod
    def identity(self) -> Iterator[bytes]:
        """What changes when the text does, at little cost."""

    def total(self) -> int:
        """About how many bytes of text there are."""
        return sum(self.sizes())

    def scan(self, on_fault: OnFault) -> Iterator[Iterator[str]]:
        """The documents of every segment, one segment after the other."""
        return (self.read(segment, on_fault) for segment in range(len(self.sizes())))

    def stamp(self) -> bytes:
        """When the source was last written; what is kept of its text is older than any other stamp."""
        return b""


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of a segment of a source that is read from its beginning.

    Args:
        size: Bytes that the segment counts for.
        begin: Where in the unpacked file they begin, or how many rows come before.
        content: The bytes.
        after: What `ResumableSource.pieces_after` goes on from; empty where nothing can, or nothing comes.
    """

    size: int
    begin: int
    content: bytes
    after: str = ""


class SequentialSource(Source):
    """A source that can only be read from its beginning: its segments are the same, their order is not free."""

    seekable: ClassVar[bool] = False
    #: Why, as messages say it behind its name.
    reason: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it."""

    @property
    @abstractmethod
    def instead(self) -> str:
        """What a user can do to have it read from anywhere."""

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """The bytes of every segment, in order."""

    @abstractmethod
    def documents_in(self, begin: int, content: bytes, on_fault: OnFault) -> Iterator[str]:
        """The documents that the bytes of a segment hold."""

    def scan(self, on_fault: OnFault) -> Iterator[Iterator[str]]:
        """The documents of every segment, one segment after the other."""
        return (self.documents_in(piece.begin, piece.content, on_fault) for piece in self.pieces())

    def sizes(self) -> Sequence[int]:
        """Bytes of each segment; the source is read through for it."""
        return [piece.size for piece in self.pieces()]

    def read(self, segment: int, on_fault: OnFault) -> Iterator[str]:
        """The documents of one segment, after reading everything before it."""
        return next(islice(self.scan(on_fault), segment, None))


class ResumableSource(SequentialSource):
    """A source that is read forwards, from its beginning or from where an earlier process came to."""

    def pieces(self) -> Iterator[Piece]:
        """The bytes of every segment, in order."""
        return self.pieces_after("")

    @abstractmethod
    def pieces_after(self, after: str) -> Iterator[Piece]:
        """The bytes of the segments behind a piece with this mark; of all where it is empty."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a corpus.

    Args:
        path: Where it lies.
        name: What it is called within the corpus, wherever that lies.
    """

    path: Path
    name: str

    def name_and_size(self) -> bytes:
        """The least a file can be known by."""
        return f"{self.name}\0{size_of(self.path)}\0".encode()

    def identity(self) -> Iterator[bytes]:
        """Name, size, and what stands at either end."""
        yield self.name_and_size()
        size = size_of(self.path)
        with _stored(self.path) as file:
            yield file.read(_SAMPLE)
            if size > _SAMPLE:
                file.seek(max(_SAMPLE, size - _SAMPLE))
                yield file.read(_SAMPLE)

    def stamp(self) -> bytes:
        """When the file was last written."""
        return str(self.path.stat().st_mtime_ns).encode()


def size_of(path: Path) -> int:
    """Bytes of a file, compressed ones as they are stored."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file opened for reading bytes, unpacked as its name says; whatever fails meanwhile becomes a `DataError`."""
    with _stored(path) as file:
        yield unpack(file, path) if is_compressed(path) else file


@contextmanager
def _stored(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file as they are stored."""
    try:
        with open_file(path) as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"`{path}` cannot be read: {error.strerror or error}; check the path and its permissions")


_logger = logging.getLogger("slimformer.corpus")
_CHUNK = 2**20


@dataclass(frozen=True)
class Fault:
    """Something in a file that is not as it should be.

    Args:
        file: The file.
        what: What is wrong, with the value seen.
        mend: What a user can do.
        byte: Where in the file it begins; None for tables, which have rows.
        row: Which row of a table, counted from 1.
    """

    file: str
    what: str
    mend: str
    byte: int | None = None
    row: int | None = None


#: What is told of a fault; if it returns, the record is left out or its bad bytes are replaced.
OnFault = Callable[[Fault], None]


def refuse(fault: Fault) -> NoReturn:
    """Stop: the run has not started yet, and the user can mend the file."""
    where = f"row {fault.row}" if fault.byte is None else f"line {_line(Path(fault.file), fault.byte)}"
    raise DataError(f"`{fault.file}` {where} {fault.what}; {fault.mend}")


@dataclass
class Outlive:
    """Go on: a run of days must not end at one bad record. The first fault of each file is logged as a warning."""

    told: set[str] = field(default_factory=set)

    def __call__(self, fault: Fault) -> None:
        """Note a fault."""
        if fault.file not in self.told:
            self.told.add(fault.file)
            where = f"row {fault.row}" if fault.byte is None else f"byte {fault.byte}"
            _logger.warning(
                "`%s` %s %s; such records are left out and such bytes replaced, without another word about this file",
                *(visible(fault.file), where, visible(fault.what)),
            )


def decode(content: bytes, file: str, on_fault: OnFault, *, byte: int | None = None, row: int | None = None) -> str:
    """Bytes as text; those that are not UTF-8 are a fault, and become U+FFFD where that is outlived."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        at = None if byte is None else byte + error.start
        place = "" if at is None else f" at byte {at} of the file"
        what = f"is not UTF-8: byte `0x{content[error.start]:02x}`{place}"
        on_fault(Fault(file, what, conversion("latin1"), at, row))
        return content.decode(errors="replace")


def _line(path: Path, byte: int) -> int:
    """Number of the line a byte stands in, counted from 1."""
    lines = 1
    with opened(path) as file:
        while byte > 0 and (chunk := file.read(min(byte, _CHUNK))):
            lines += chunk.count(b"\n")
            byte -= len(chunk)
    return lines


def text_column_of(columns: Sequence[str], file: str, given: str | None) -> str:
    """The text column of a file, or an error that names the columns seen."""
    if given is not None:
        if given not in columns:
            raise DataError(
                f"`{file}` has no column `{given}`; it has {listed_columns(columns)}; choose with text_column"
            )
        return given
    if "text" in columns:
        return "text"
    named = [name for name in columns if name.lower() in TEXTS]
    likely = named or [name for name in columns if name.lower() not in IDS]
    if len(likely) != 1:
        raise DataError(
            f"`{file}` does not tell which column holds the text: it has {listed_columns(columns)}; "
            "name it with text_column"
        )
    return likely[0]


def check_names(names: Sequence[str], file: str) -> list[str]:
    """The column names of a header line; each may stand there once."""
    stripped = [name.strip() for name in names]
    for name, count in Counter(stripped).items():
        if count > 1:
            raise DataError(f"`{file}` line 1 names column `{name}` twice; give every column its own name")
    return stripped


def visible_files(folder: Path) -> list[Path]:
    """Every file below a folder, in order, without those that are hidden."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(found)
