"""`slimformer demo`."""

from __future__ import annotations

import time

from slimformer.cli.output import Json, Quiet, print_json, print_line, print_table


def demo(*, out: str = "demo", as_json: Json = False, quiet: Quiet = False) -> None:
    """Train and measure a real model on real reviews in a few minutes, offline, and write a report.

    Args:
        out: Folder for the artifacts and the report; what an earlier demo left there, unchanged, is replaced.
    """
    from slimformer.demo import COLUMNS, run_demo

    start = time.monotonic()
    rows, report = run_demo(out, quiet=quiet)
    seconds = time.monotonic() - start
    if as_json:
        print_json({"rows": [vars(row) for row in rows], "report": str(report), "seconds": round(seconds, 1)})
        return
    print_table(f"film reviews, {seconds:.0f} s", COLUMNS, [row.cells() for row in rows])
    print_line(f"report: {report}")
