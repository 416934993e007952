"""What is wrong with a record, and what becomes of it: refused before a run starts, outlived once it goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from slimformer.errors import DataError

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
                *(fault.file, where, fault.what),
            )


def decode(content: bytes, file: str, on_fault: OnFault, *, byte: int | None = None, row: int | None = None) -> str:
    """Bytes as text; those that are not UTF-8 are a fault, and become U+FFFD where that is outlived."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        at = None if byte is None else byte + error.start
        place = "" if at is None else f" at byte {at} of the file"
        what = f"is not UTF-8: byte `0x{content[error.start]:02x}`{place}"
        on_fault(Fault(file, what, "convert the file, for example with: iconv -f latin1 -t utf-8", at, row))
        return content.decode(errors="replace")


def _line(path: Path, byte: int) -> int:
    """Number of the line a byte stands in, counted from 1."""
    lines = 1
    with path.open("rb") as file:
        while byte > 0 and (chunk := file.read(min(byte, _CHUNK))):
            lines += chunk.count(b"\n")
            byte -= len(chunk)
    return lines
