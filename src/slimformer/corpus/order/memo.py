"""Where the blocks of a stream begin, kept for a run that goes on."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from pathlib import Path

from slimformer.errors import DataError
from slimformer.files import parse_json


class Memo:
    """Counts of the first blocks of a stream, in memory and in a file that survives a kill.

    The file is only ever appended to, a whole line at a time, and every line says what it belongs to: a torn line, a
    line that another process wrote too and the lines of other settings do no harm.

    Args:
        path: The file; None to keep the counts in memory only.
        key: What the counts depend on; lines with another key are ignored.
    """

    def __init__(self, path: str | Path | None, key: str) -> None:
        self._path = None if path is None else Path(path)
        # Every process counts the same; one on each machine is enough to write it down.
        self._writes = os.environ.get("LOCAL_RANK", "0") == "0"
        self._key = key
        self._ends: list[int] = []  # examples up to the end of each block
        #: Examples of an epoch as a run counted or estimated them at its start; None where none did.
        self.epoch: int | None = None
        self._torn = False
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def __len__(self) -> int:
        return len(self._ends)

    def find(self, example: int) -> tuple[int, int] | None:
        """The block of an example and its number within; None when it lies beyond the blocks known."""
        block = bisect_right(self._ends, example)
        return None if block == len(self._ends) else (block, example - self.before(block))

    def before(self, block: int) -> int:
        """Examples in all blocks before one."""
        return self._ends[block - 1] if block else 0

    def note(self, block: int, examples: int) -> None:
        """Remember the count of the next block, or make sure that a known one is still right."""
        if block < len(self._ends):
            known = self._ends[block] - self.before(block)
            if known != examples:
                raise DataError(
                    f"block {block} of the corpus has {examples} examples now and had {known} before, so its files "
                    "were changed while they were in use; start anew"
                )
            return
        self._ends.append(self.before(block) + examples)
        self._write({"block": block, "examples": examples})

    def note_epoch(self, examples: int) -> None:
        """Remember how long an epoch is taken to be, so that a run that goes on takes as many steps."""
        self.epoch = examples
        self._write({"epoch": examples})

    def _write(self, values: dict[str, int]) -> None:
        path = self._path
        if path is None or not self._writes:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"stream": self._key, **values}) + "\n"
        with path.open("a") as file:
            file.write(f"\n{text}" if self._torn else text)
        self._torn = False

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        self._torn = bool(content) and not content.endswith(b"\n")
        counts: dict[int, int] = {}
        for line in content.split(b"\n"):
            try:
                values = parse_json(line)
                if values["stream"] != self._key:
                    continue
                if "epoch" in values:
                    self.epoch = int(values["epoch"])
                else:
                    counts[int(values["block"])] = int(values["examples"])
            except (ValueError, TypeError, KeyError):
                continue
        while len(self._ends) in counts:
            self._ends.append(self.before(len(self._ends)) + counts[len(self._ends)])
