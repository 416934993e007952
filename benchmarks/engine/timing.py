"""Medians of alternatives that take turns, in as many rounds as there is time for."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Threads of a runtime look for more work for some milliseconds after its turn, and would disturb the next one.
PAUSE = 0.02
#: A turn is one call, or as many as take this long, after one that brings threads and caches back.
TURN = 0.04
#: At least and at most; fewer where one alone takes longer than all may.
ROUNDS = (3, 21)
FEWEST = 2


def take_turns(runs: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median seconds of a call of each alternative, all of them in every round.

    Args:
        runs: The alternatives, each called at least once before.
        seconds: How long all rounds together may take; there are some in any case.
    """
    turns: dict[str, list[float]] = {name: [] for name in runs}
    began = time.perf_counter()
    least, most = ROUNDS
    for number in range(most):
        for name, run in runs.items():
            turns[name].append(_turn(run, turns[name][-1] if turns[name] else None))
        rounds, passed = number + 1, time.perf_counter() - began
        enough = FEWEST if passed / rounds > seconds else least
        if rounds >= enough and passed * (rounds + 1) / rounds > seconds:
            break
    return {name: statistics.median(values) for name, values in turns.items()}


def _turn(run: Callable[[], Any], last: float | None) -> float:
    time.sleep(PAUSE)
    if last is None or last < 10 * TURN:
        last = _seconds(run)
    calls = max(1, min(20, round(TURN / last)))
    return statistics.median(_seconds(run) for _ in range(calls))


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
