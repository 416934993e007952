"""Long benchmarks as many small pieces of work, each done once: what is kept after a kill is never computed again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import RESULTS, add_work_option, kept, work_folder, write

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


class OutOfTimeError(Exception):
    """The minutes a benchmark was given are over; another start goes on with the next piece."""


def add_piece_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Where data and models lie, and when to stop."""
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    add_work_option(parser, name)
    parser.add_argument("--minutes", type=float, default=None, help="begin no piece of work after so many minutes")


class Pieces:
    """The pieces of one benchmark by name, kept in its result file after each of them.

    Args:
        benchmark: Name of the benchmark.
        arguments: Its options; `minutes` among them ends it after the piece in which they are over.
        summary: Makes the rest of the result of all pieces that are there.
    """

    def __init__(
        self, benchmark: str, arguments: argparse.Namespace, summary: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        self.benchmark = benchmark
        self.arguments = arguments
        self.summary = summary
        self.done: dict[str, Any] = {} if arguments.tiny else kept(benchmark).get("pieces", {})
        self.end = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes

    def do(
        self,
        name: str,
        work: Callable[[], dict[str, Any]],
        still: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """What a piece of work came to, with the seconds it took on the clock and of the processor.

        Args:
            name: Which piece.
            work: Does it.
            still: Whether what was kept of it still holds; otherwise it is done again.
        """
        if name in self.done and still(self.done[name]):
            return self.done[name]
        if self.end is not None and time.monotonic() > self.end:
            raise OutOfTimeError
        clock, processor = time.monotonic(), time.process_time()
        result = work()
        seconds, busy = time.monotonic() - clock, time.process_time() - processor
        self.done[name] = {**result, "seconds": round(seconds, 1), "cpu_seconds": round(busy, 1)}
        if not self.arguments.tiny:
            self.keep()
        print(f"{name}: {busy:.0f} s of the processor in {seconds:.0f} s", flush=True)
        return self.done[name]

    def run(self, everything: Callable[[], None]) -> None:
        """Do all pieces, a tiny run's in a folder that goes with it, and print the summary.

        Args:
            everything: Does them, whatever is not done yet.
        """
        with work_folder(self.arguments):
            try:
                everything()
            except OutOfTimeError:
                print("the minutes are over; start again to go on")
                return
        print(json.dumps(self.summary(self.done), indent=2))

    def result(self) -> dict[str, Any]:
        """The whole result: the summary, then the pieces it was made of."""
        return {**self.summary(self.done), "pieces": self.done}

    def keep(self) -> None:
        """Write the result file, with what other processes have added to it meanwhile."""
        self.done = {**kept(self.benchmark).get("pieces", {}), **self.done}
        write(self.benchmark, self.arguments, self.result())
