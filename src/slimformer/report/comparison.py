"""Models side by side, as a table for the terminal and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.report.page import Facts, Figure, Page, Table
from slimformer.report.plots import Measured, tradeoffs

if TYPE_CHECKING:
    from slimformer.inference.comparison import Comparison, Row
    from slimformer.tasks.metrics import ClassScores

COLUMNS = ("MB", "p50 ms", "p95 ms", "memory MB", "weights", "interval", "behind best")
MEGA = 1e6
#: Labels of which a page shows the confusion matrix.
MOST_LABELS = 20


def comparison_table(comparison: Comparison) -> Table:
    """One row for each model."""
    fits = {True: "yes", False: "no", None: "?"}
    rows = [
        [
            row.name,
            f"{row.quality.primary:.4f}",
            *([fits[comparison.budgets.fit(row)]] if comparison.budgets else []),
            *_cells(row),
        ]
        for row in comparison.rows
    ]
    return Table(
        f"{comparison.task}/{comparison.split}, {comparison.examples} examples",
        ["model", comparison.metric, *(["fits"] if comparison.budgets else []), *COLUMNS],
        rows,
        note=_note(comparison),
    )


def _cells(row: Row) -> list[str]:
    return [
        "?" if row.stored is None else f"{row.stored.total / MEGA:.2f}{' *' if row.stored.base else ''}",
        f"{row.latency.p50_ms:.2f}",
        f"{row.latency.p95_ms:.2f}",
        f"{row.memory / MEGA:.0f}",
        f"{row.parameters / MEGA:.1f} M",
        _interval(row.quality.interval),
        "best" if row.quality is row.best else _interval(row.behind, signed=True),
    ]


def _interval(interval: tuple[float, float] | None, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return "-" if interval is None else f"{interval[0]:{sign}.3f} to {interval[1]:{sign}.3f}"


def _note(comparison: Comparison) -> str:
    """How the columns are to be read."""
    masks = [row for row in comparison.rows if row.stored is not None and row.stored.base]
    parts = [
        "Intervals hold 95 of 100 samples of as many rows; the difference to the best is taken on the same samples. "
        f"Milliseconds are those of one text at a time, tokenizing included, on {comparison.timed} of the texts with "
        f"{comparison.threads} thread{'' if comparison.threads == 1 else 's'}, all models taking turns"
        f"{' on the native engine' if comparison.engine == 'native' else ''}. 1 MB is a million bytes of weights."
    ]
    if masks:
        own = ", ".join(f"{row.name} {row.stored.own / MEGA:.2f}" for row in masks if row.stored is not None)
        parts.append(f"* with the base, which is stored once for all its masks; of their own: {own} MB.")
    return " ".join(parts)


def _exceeded(comparison: Comparison) -> str:
    """How many models each budget leaves out."""
    budgets, rows = comparison.budgets, comparison.rows
    parts = []
    if budgets.bytes is not None:
        larger = sum(row.stored is None or row.stored.total > budgets.bytes for row in rows)
        parts.append(f"{larger} of {len(rows)} are not known to be within {budgets.bytes / MEGA:.2f} MB")
    if budgets.ms is not None:
        slower = sum(row.latency.p50_ms > budgets.ms for row in rows)
        parts.append(f"{slower} of {len(rows)} take more than {budgets.ms:g} ms")
    return "; ".join(parts)


def verdict(comparison: Comparison) -> str:
    """Which model to take, in one sentence."""
    best = comparison.best
    if best is None:
        return f"no model is within the budgets: {_exceeded(comparison)}"
    within = " within the budgets" if comparison.budgets else ""
    return f"best{within}: {best.name}, {comparison.metric} {best.quality.primary:.4f}"


def comparison_page(comparison: Comparison) -> Page:
    """All that was measured, on one page."""
    classes = [(row, row.quality.classes) for row in comparison.rows if row.quality.classes is not None]
    dashed = "Dashed: the budgets. " if comparison.budgets else ""
    return Page(
        "Models compared",
        f"{verdict(comparison)[0].upper()}{verdict(comparison)[1:]}.",
        [
            comparison_table(comparison),
            Figure("What quality costs", tradeoff_picture(comparison), f"{dashed}Bars: 95 % intervals."),
            *([_by_class(comparison, classes)] if classes else []),
            *(_confusion(row, scores) for row, scores in classes if _is_small(scores)),
            Facts("Measured with", _facts(comparison)),
        ],
    )


def tradeoff_picture(comparison: Comparison) -> str:
    """Quality over bytes and over milliseconds."""
    budgets = comparison.budgets
    by_bytes = [
        Measured(row.name, row.stored.total / MEGA, row.quality.primary, row.quality.interval)
        for row in comparison.rows
        if row.stored is not None
    ]
    by_time = [
        Measured(row.name, row.latency.p50_ms, row.quality.primary, row.quality.interval) for row in comparison.rows
    ]
    panels = [("milliseconds of one text (p50)", by_time, budgets.ms)]
    if by_bytes:
        panels.insert(0, ("MB on disk", by_bytes, None if budgets.bytes is None else budgets.bytes / MEGA))
    return tradeoffs(panels, comparison.metric)


def _by_class(comparison: Comparison, classes: list[tuple[Row, ClassScores]]) -> Table:
    rows = [
        [f"{row.name}: {label}", f"{precision:.3f}", f"{recall:.3f}", f"{f1:.3f}", str(support)]
        for row, scores in classes
        for label, precision, recall, f1, support in zip(
            scores.labels, scores.precision, scores.recall, scores.f1, scores.support, strict=True
        )
    ]
    return Table("Label by label", ("model and label", "precision", "recall", "F1", "rows"), rows)


def _is_small(scores: ClassScores) -> bool:
    return scores.confusion is not None and len(scores.labels) <= MOST_LABELS


def _confusion(row: Row, scores: ClassScores) -> Table:
    rows = [[label, *map(str, counts)] for label, counts in zip(scores.labels, scores.confusion or (), strict=True)]
    return Table(f"What {row.name} takes for what", ["is, and called →", *scores.labels], rows)


def _facts(comparison: Comparison) -> dict[str, str]:
    budgets = comparison.budgets
    values = {
        "data": f"{comparison.task}/{comparison.split}, {comparison.examples} examples",
        "texts timed": str(comparison.timed),
        "threads": str(comparison.threads),
        "engine": comparison.engine,
        "budget of bytes": None if budgets.bytes is None else f"{budgets.bytes / MEGA:.2f} MB",
        "budget of milliseconds": None if budgets.ms is None else f"{budgets.ms:g}",
        "notes": "; ".join(comparison.notes) or None,
    }
    return {name: value for name, value in values.items() if value is not None}
