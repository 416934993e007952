"""Calls of runtimes timed apart, and ratios of what was timed in the same round."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Key = TypeVar("Key")

#: Threads of torch and of llama.cpp look for more work for a while after their turn, and would disturb the next one.
PAUSE = 0.2


def timed_apart(
    kinds: Mapping[str, Mapping[Key, Callable[[], float | None]]], rounds: int, seed: int, pause: float = PAUSE
) -> dict[str, dict[Key, list[float]]]:
    """Seconds of every call in every round.

    Kinds take turns in each round, so that noise hits all alike, with a pause in between. The calls of a kind stand
    together, in another order each time, and each is called once without being timed first: what its threads and caches
    are like does not hang on who had the turn before.

    Args:
        kinds: Name of a kind, such as a runtime with its type of numbers → its calls by what tells them apart. A call
            that returns a number was timed by its own clock.
        rounds: How often each is timed.
        seed: Draws the orders.
        pause: Seconds before a kind's turn.
    """
    order = random.Random(seed)
    seconds: dict[str, dict[Key, list[float]]] = {name: {key: [] for key in calls} for name, calls in kinds.items()}
    for _ in range(rounds):
        for name, calls in kinds.items():
            time.sleep(pause)
            for key in order.sample([*calls], len(calls)):
                calls[key]()
                start = time.perf_counter()
                own = calls[key]()
                seconds[name][key].append(time.perf_counter() - start if own is None else own)
    return seconds


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, Any]:
    """How many times one is the other, round by round: the median and the quartiles."""
    ratios = [one / other for one, other in zip(over, under, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {
        "median": round(statistics.median(ratios), 3),
        "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        "rounds": len(ratios),
    }
