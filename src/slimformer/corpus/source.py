"""A source: one file or table of a corpus, cut into segments that can be read in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from slimformer.corpus.faults import OnFault

#: A record (a line of JSON, a row of CSV) may be this many bytes long, so that memory stays bounded.
RECORD_LIMIT = 2**26
#: So much of either end of a file goes into its digest.
_SAMPLE = 2**16


class Source(ABC):
    """Documents in segments: reading all segments gives every document once."""

    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """About how many bytes of text each segment holds."""

    @abstractmethod
    def read(self, segment: int, on_fault: OnFault) -> Iterator[str]:
        """The documents of one segment, in order; none is blank."""

    @abstractmethod
    def identity(self) -> Iterator[bytes]:
        """What changes when the text does, at little cost."""


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
        with opened(self.path) as file:
            yield file.read(_SAMPLE)
            if size > _SAMPLE:
                file.seek(max(_SAMPLE, size - _SAMPLE))
                yield file.read(_SAMPLE)


def size_of(path: Path) -> int:
    """Bytes of a file."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file opened for reading bytes; whatever fails while it is read becomes a `DataError`."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"`{path}` cannot be read: {error.strerror or error}; check the path and its permissions")
