"""Streams of unpacked bytes, in bounded memory whatever a file claims."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Bytes that the window of an .xz file may take; `xz -9` asks for 65 MiB, a file made to harm for 4 GiB.
XZ_MEMORY = 2**28
_CHUNK = 2**18


class _Reader(Protocol):
    """What unpacking needs of a stream."""

    def read(self, size: int, /) -> bytes: ...


class _XzReader:
    """An .xz file of one stream or several, with a limit on memory that `lzma.open` does not have."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder: lzma.LZMADecompressor | None = self._new()

    def read(self, size: int, /) -> bytes:
        while self._decoder is not None:
            waiting = b""
            if self._decoder.eof:
                waiting = self._next_stream(self._decoder.unused_data)
                if self._decoder is None:
                    break
            elif self._decoder.needs_input and not (waiting := self._file.read(_CHUNK)):
                raise EOFError("it ends before its last block does")
            if content := self._decoder.decompress(waiting, size):
                return content
        return b""

    def _next_stream(self, rest: bytes) -> bytes:
        """The first bytes of another stream, after zeros that fill up; none at the end of the file."""
        while not (rest := rest.lstrip(b"\0")) and (chunk := self._file.read(_CHUNK)):
            rest = chunk
        self._decoder = self._new() if rest else None
        return rest

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)


def _zstd(file: BinaryIO) -> _Reader:
    # Arrow, which `datasets` brings along, has the decoder that Python has from 3.14 on; windows of more than 128 MiB
    # are refused by the decoder itself.
    import pyarrow as arrow

    reader: _Reader = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
    return reader


def _gzip(file: BinaryIO) -> _Reader:
    return gzip.GzipFile(fileobj=file)


#: How the names of compressed files end → what unpacks them.
UNPACKERS: dict[str, Callable[[BinaryIO], _Reader]] = {
    ".gz": _gzip,
    ".bz2": bz2.BZ2File,
    ".xz": _XzReader,
    ".zst": _zstd,
}


def is_compressed(path: Path) -> bool:
    """Tell by its name whether a file is unpacked as it is read."""
    return path.suffix.lower() in UNPACKERS


def ending_of(path: Path) -> str:
    """What the name of the text ends in, which of `a.jsonl.zst` is `.jsonl`."""
    return (path.with_suffix("") if is_compressed(path) else path).suffix.lower()


class _Unpacked(io.RawIOBase):
    """The content of a compressed file, read forwards."""

    def __init__(self, reader: _Reader, path: Path) -> None:
        self._reader = reader
        self._path = path
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip to a later place; going back would unpack everything again."""
        if whence != io.SEEK_SET or offset < self._place:
            raise io.UnsupportedOperation("a compressed file is read forwards")
        while self._place < offset and self.read(min(_CHUNK, offset - self._place)):
            pass
        return self._place

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        try:
            content = self._reader.read(len(view))
        except (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:  # Arrow's are the last two
            reason = str(error).splitlines()[0] or type(error).__name__
            raise DataError(
                f"`{self._path}` is not a whole {self._path.suffix.lower()} file that can be read: {reason}; "
                "copy it again"
            ) from error
        view[: len(content)] = content
        self._place += len(content)
        return len(content)


def unpack(file: BinaryIO, path: Path) -> BinaryIO:
    """What a compressed file holds.

    Args:
        file: The open file.
        path: Its name, which says how it is compressed.
    """
    return io.BufferedReader(_Unpacked(UNPACKERS[path.suffix.lower()](file), path), _CHUNK)
