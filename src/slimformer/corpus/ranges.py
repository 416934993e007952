"""Cutting a file into byte ranges that begin where a document begins, without reading it through."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from slimformer.corpus.source import opened

if TYPE_CHECKING:
    from pathlib import Path

#: What stands between two documents.
LINE_END = re.compile(rb"\n")
BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")
_FIRST_LOOK = 2**16


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
        window = file.read(min(_FIRST_LOOK, stop - start))
        while (found := self.border.search(window)) is None:
            more = file.read(min(len(window), stop - start - len(window)))
            if not more:
                break
            window += more
        if found is not None:
            return start + found.end()
        return self.end if stop == self.end else place + _to_next_word(window[1:])


def _to_next_word(content: bytes) -> int:
    """Bytes until a blank or, where there is none, until a UTF-8 character begins, which takes three at most."""
    blank = content.find(b" ")
    return blank if blank >= 0 else next((at for at, byte in enumerate(content[:3]) if byte & 0xC0 != 0x80), 3)
