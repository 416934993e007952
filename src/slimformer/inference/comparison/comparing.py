"""Models side by side: the same rows, draws and texts for all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slimformer.config import parse_bytes
from slimformer.counts import check_count
from slimformer.errors import UsageError, describe
from slimformer.inference.comparison.candidate import Candidate, check_names, check_same_rows, split_name
from slimformer.inference.comparison.cost import time_in_turns
from slimformer.inference.comparison.quality import draw_rows, measure_quality
from slimformer.inference.door import look_up
from slimformer.inference.native import is_native
from slimformer.inference.runners import using_threads
from slimformer.tasks.metrics import SMALLER_IS_BETTER
from slimformer.tasks.splits import sample

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.inference.comparison.cost import Latency, StoredBytes
    from slimformer.inference.comparison.quality import Quality
    from slimformer.tasks.options import TaskOptions


@dataclass(frozen=True)
class Budgets:
    """What a model may cost; None for whatever it takes.

    Args:
        bytes: Bytes on disk, with the base that a mask needs.
        ms: Milliseconds in the median of one text at a time.
    """

    bytes: int | None = None
    ms: float | None = None

    @classmethod
    def read(cls, max_bytes: int | str | None = None, max_ms: float | None = None) -> Budgets:
        """Budgets as people type them, such as `10MB`."""
        try:
            size = parse_bytes(max_bytes)
        except ValueError as error:
            raise UsageError(f"`--max-bytes` is `{describe(max_bytes)}`; {error}") from None
        if max_ms is not None and not 0 < max_ms < math.inf:
            raise UsageError(f"`--max-ms` is `{max_ms}`; give more than 0 milliseconds")
        return cls(size, max_ms)

    def __bool__(self) -> bool:
        return self.bytes is not None or self.ms is not None

    def fit(self, row: Row) -> bool | None:
        """Whether a model stays within them; None where there are none, or its bytes are not known."""
        within: list[bool | None] = []
        if self.bytes is not None:
            within.append(None if row.stored is None else row.stored.total <= self.bytes)
        if self.ms is not None:
            within.append(row.latency.p50_ms <= self.ms)
        if not within or False in within:
            return False if within else None
        return None if None in within else True


@dataclass(frozen=True)
class Row:
    """What was measured of one model.

    Args:
        name: As the user gave it.
        storage: How its weights are stored.
        quality: What it is worth.
        best: What the best of all models is worth.
        stored: Bytes on disk; None where it lies in no folder.
        parameters: Its weights.
        memory: Bytes that the process grew by while it was opened and answered some texts one by one.
        latency: Milliseconds of one text, tokenizing included.
    """

    name: str
    storage: str
    quality: Quality
    best: Quality
    stored: StoredBytes | None
    parameters: int
    memory: int
    latency: Latency

    @property
    def behind(self) -> tuple[float, float] | None:
        """Where its difference to the best lies, on the same draws of rows."""
        return self.quality.minus(self.best)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON types."""
        interval, classes = self.quality.interval, self.quality.classes
        return {
            "model": self.name,
            "storage": self.storage,
            "metrics": self.quality.metrics,
            "interval": None if interval is None else list(interval),
            "behind_best": None if self.behind is None else list(self.behind),
            "classes": None if classes is None else classes.as_dict(),
            "bytes": None if self.stored is None else self.stored.total,
            "own_bytes": None if self.stored is None else self.stored.own,
            "base_bytes": None if self.stored is None else self.stored.base,
            "parameters": self.parameters,
            "memory_bytes": self.memory,
            "latency_ms": {"p50": self.latency.p50_ms, "p95": self.latency.p95_ms},
        }


@dataclass(frozen=True)
class Comparison:
    """Models side by side.

    Args:
        task: The task they were measured on.
        split: Its split.
        examples: Rows of it.
        timed: Rows that were timed.
        threads: Threads they ran with.
        engine: What ran those that are no ONNX files.
        metric: What chooses between them.
        budgets: What they may cost.
        rows: The models, in the order they were named.
        notes: What a user should know of the data.
    """

    task: str
    split: str
    examples: int
    timed: int
    threads: int
    engine: str
    metric: str
    budgets: Budgets
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Row | None:
        """The best of those within the budgets, of equals the one with fewer bytes; None where none is."""
        within = [row for row in self.rows if self.budgets.fit(row) is not False]
        if not within:
            return None
        best = best_of([row.quality for row in within], self.metric).primary
        equal = [row for row in within if row.quality.primary == best]
        return min(equal, key=lambda row: 0 if row.stored is None else row.stored.total)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON types."""
        return {
            **{
                name: getattr(self, name)
                for name in ("task", "split", "examples", "timed", "threads", "engine", "metric")
            },
            "budgets": {"bytes": self.budgets.bytes, "ms": self.budgets.ms},
            "best": None if self.best is None else self.best.name,
            "models": [{**row.as_dict(), "fits": self.budgets.fit(row)} for row in self.rows],
            "notes": self.notes,
        }


def best_of(qualities: Sequence[Quality], metric: str) -> Quality:
    """The best by a metric."""
    sign = -1 if metric in SMALLER_IS_BETTER else 1
    return max(qualities, key=lambda quality: sign * quality.primary)


def compare(
    names: Sequence[str | Path],
    options: TaskOptions,
    split: str = "dev",
    *,
    budgets: Budgets | None = None,
    timed: int = 64,
    threads: int | None = None,
    batch_size: int = 32,
    base: str | Path | None = None,
    cast_base: bool = False,
    check: bool = True,
    engine: str | None = None,
) -> Comparison:
    """Measure models on the same rows: quality, bytes, memory and, taking turns on the same texts, milliseconds.

    Args:
        names: Artifacts, masks, checkpoints, ONNX files, folders, Hub names or aliases; `FOLDER@S` for one size of an
            elastic model.
        options: Task and data; what is not given is what each model was trained with.
        split: Which split.
        budgets: What a model may cost.
        timed: Rows that are timed, one at a time, tokenizing included.
        threads: CPU threads; None for what PyTorch has chosen.
        batch_size: Items per forward while quality is measured; changes speed and memory only.
        base: Where the base of masks is; where it was at saving when not given.
        cast_base: Whether that base may have been cast to 16 bits, which changes answers a little.
        check: Whether artifacts must answer as recorded at saving; their sums are compared in any case.
        engine: `native` for the native engine, torch when not given; ONNX files run in ONNX Runtime all the same.

    Example:
        >>> compare(["sentiment", "sentiment-ternary"], TaskOptions(data="reviews")).best.name
    """
    check_count("batch-size", batch_size)
    check_count("timed", timed)
    named = check_names(names)
    loading: dict[str, Any] = {"base": base, "cast_base": cast_base, "check": check, "engine": engine}
    is_native(engine)  # refuses one that there is not, before anything is opened
    with using_threads(threads) as used:
        sources = [look_up(split_name(name)[0]) for name in named]  # what is not there is told before any is opened
        candidates = [
            Candidate.open(name, source, options, split, **loading) for name, source in zip(named, sources, strict=True)
        ]
        check_same_rows(candidates)
        rows = len(candidates[0].rows)
        draws = draw_rows(rows)
        qualities = [
            measure_quality(each.data, split, each.features, each.predictions(batch_size), draws) for each in candidates
        ]
        chosen = sample(rows, timed)
        latencies = time_in_turns([each.answer for each in candidates], chosen)
    first, metric = candidates[0].data, next(iter(qualities[0].metrics))
    best = best_of(qualities, metric)
    return Comparison(
        task=first.preset.name,
        split=split,
        examples=rows,
        timed=len(chosen),
        threads=used,
        engine=engine or "torch",
        metric=metric,
        budgets=budgets or Budgets(),
        rows=[
            Row(each.name, each.source.storage, quality, best, each.stored, each.parameters, each.memory, latency)
            for each, quality, latency in zip(candidates, qualities, latencies, strict=True)
        ],
        notes=list(dict.fromkeys(note for each in candidates for note in each.data.notes)),
    )
