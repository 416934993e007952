"""Compressed files as sources: cut into the segments that the same text would be cut into uncompressed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from slimformer.corpus.compressed.unpacking import unpack
from slimformer.corpus.delimited import QuotedRecords, csv_pieces
from slimformer.corpus.lines import FIRST_LOOK, ByteRanges, RangedFile, to_next_word
from slimformer.corpus.source import OnFault, Piece, SequentialSource, SourceFile, opened, size_of
from slimformer.files import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Unpacked bytes from which the size of the whole is estimated.
_SAMPLE = 2**22


@dataclass(frozen=True, slots=True)
class _Compressed(SequentialSource):
    """A compressed file, read by the reader of its text.

    Args:
        inner: The reader, which knows where a document begins and what of it is text.
        step: Bytes of a segment.
    """

    inner: RangedFile | QuotedRecords
    step: int
    reason: ClassVar[str] = "is compressed"

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """The bytes of every segment, in order."""

    @property
    def file(self) -> SourceFile:
        """The file."""
        return self.inner.file

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.file.path)

    @property
    def instead(self) -> str:
        """What a user can do to have it read from anywhere."""
        return "unpack the file"

    def total(self) -> int:
        """About how many bytes there are unpacked, as if all were compressed as the first mebibytes are."""
        path = self.file.path
        with open_file(path) as stored:
            stream = unpack(stored, path)  # which closes the file when it goes
            unpacked = len(stream.read(_SAMPLE))
            return unpacked if unpacked < _SAMPLE else unpacked * size_of(path) // stored.tell()

    def documents_in(self, begin: int, content: bytes, on_fault: OnFault) -> Iterator[str]:
        """The documents that the bytes of a segment hold."""
        return self.inner.documents_in(begin, content, on_fault)

    def identity(self) -> Iterator[bytes]:
        """What the file is and how it is read, from which place on too: its segments are not known beforehand."""
        yield from self.inner.identity()
        first = self.inner.header if isinstance(self.inner, QuotedRecords) else self.inner.ranges.begin
        yield f"from {first}".encode()

    def stamp(self) -> bytes:
        """When the file was last written."""
        return self.inner.stamp()


class CompressedLines(_Compressed):
    """Compressed text, JSON Lines or TSV."""

    __slots__ = ()

    def pieces(self) -> Iterator[Piece]:
        """The bytes of every segment, in order."""
        assert isinstance(self.inner, RangedFile)
        with opened(self.file.path) as stream:
            yield from cut_stream(stream, self.inner.ranges)


class CompressedRecords(_Compressed):
    """Compressed CSV."""

    __slots__ = ()

    def pieces(self) -> Iterator[Piece]:
        """The bytes of every segment, in order."""
        assert isinstance(self.inner, QuotedRecords)
        return csv_pieces(self.inner, self.step)


class _Window:
    """What has been read of a stream and not been given out yet."""

    def __init__(self, stream: BinaryIO, begin: int) -> None:
        stream.seek(begin)
        self._stream = stream
        self.begin = begin
        self.content = b""
        self.ended = False

    @property
    def end(self) -> int:
        return self.begin + len(self.content)

    def fill(self, until: int) -> None:
        """Read up to a byte of the stream, or all there is."""
        while not self.ended and self.end < until:
            more = self._stream.read(until - self.end)
            self.ended = not more
            self.content += more

    def cut(self, place: int, ranges: ByteRanges) -> int:
        """Where the first document begins at or after a place."""
        start, look = place - 1 - self.begin, min(FIRST_LOOK, ranges.reach)
        while True:
            self.fill(place + look)  # a byte more, to know whether it is the last
            border = ranges.border.search(self.content, start, start + look)
            if border is not None or self.ended or look == ranges.reach:
                break
            look = min(2 * look, ranges.reach)
        if border is not None:
            return self.begin + border.end()
        if self.end <= place - 1 + look:
            return self.end
        return place + to_next_word(self.content[start + 1 : start + look])

    def take(self, until: int) -> bytes:
        """Give out the bytes before one."""
        taken, self.content = self.content[: until - self.begin], self.content[until - self.begin :]
        self.begin = until
        return taken


def cut_stream(stream: BinaryIO, ranges: ByteRanges) -> Iterator[Piece]:
    """The ranges of a stream that is read forwards, cut where `ByteRanges` would cut a file.

    Args:
        stream: The stream, at its beginning.
        ranges: Where the first document begins, how far borders are apart and how they look; the end is not looked at.
    """
    window, place = _Window(stream, ranges.begin), ranges.begin + ranges.step
    window.fill(place + 1)
    while window.end > place:
        begin = window.begin
        # A document that reaches beyond the border leaves nothing for this range.
        yield Piece(ranges.step, begin, window.take(begin if place <= begin else window.cut(place, ranges)))
        place += ranges.step
        window.fill(place + 1)
    if rest := window.end - (place - ranges.step):
        yield Piece(rest, window.begin, window.content)
