"""What a model costs: bytes with the base it needs, memory, and milliseconds on real inputs, models taking turns."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer import models
from slimformer.artifact.storage.handler import storage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

#: Rounds before the clock starts.
WARM_UP = 3


@dataclass(frozen=True)
class StoredBytes:
    """Bytes on disk.

    Args:
        own: Those of the weights themselves.
        base: Those of the base that a mask cannot do without.
    """

    own: int
    base: int = 0

    @property
    def total(self) -> int:
        """What has to be there for the model to be loaded."""
        return self.own + self.base

    @classmethod
    def of(cls, name: str | Path, base: str | Path | None = None, *, cast_base: bool = False) -> StoredBytes | None:
        """Count those of a model; None where it lies in no folder of this machine."""
        folder = Path(models.resolve(name))
        if not folder.is_dir():
            return None
        storage = storage_of(folder)
        own = _bytes(storage.tensor_files(folder))
        return cls(own, _bytes(storage.base_files(folder, base, cast_base=cast_base)))

    @classmethod
    def of_weights(cls, weights: Iterable[Tensor]) -> StoredBytes:
        """Those that the weights of one size of several would take in a file of their own."""
        return cls(sum(tensor.numel() * tensor.element_size() for tensor in weights))


def _bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


@dataclass(frozen=True)
class Latency:
    """Milliseconds from a request to its answer, one at a time."""

    p50_ms: float
    p95_ms: float


def time_in_turns(calls: Sequence[Callable[[int], object]], items: Sequence[int]) -> list[Latency]:
    """Time calls on the same items, so that whatever else the machine does for a while falls on all alike.

    Args:
        calls: One for each model; takes the number of an item.
        items: Their numbers.
    """
    for item in items[:WARM_UP]:
        for call in calls:
            call(item)
    seconds: list[list[float]] = [[] for _ in calls]
    for number, item in enumerate(items):
        for turn in range(len(calls)):
            index = (number + turn) % len(calls)  # none is always the one after the slowest
            start = time.perf_counter()
            calls[index](item)
            seconds[index].append(time.perf_counter() - start)
    return [_latency(each) for each in seconds]


def _latency(seconds: list[float]) -> Latency:
    cuts = statistics.quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else seconds
    return Latency(round(1e3 * statistics.median(seconds), 3), round(1e3 * cuts[-1], 3))
