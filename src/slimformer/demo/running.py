"""Runs the demo: trains a model by each method, then measures all of them side by side."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slimformer import __version__
from slimformer.artifact.layout import is_litter
from slimformer.artifact.staging import write_file
from slimformer.demo.page import Row, demo_page, learning_curves
from slimformer.demo.reviews import read_reviews, write_reviews
from slimformer.errors import TrainingError
from slimformer.files import read_limited
from slimformer.inference.comparison import Comparison, compare
from slimformer.inference.comparison.candidate import AT
from slimformer.methods.method import RunOptions
from slimformer.methods.output import OutputDirectory, RunResult, check_writable
from slimformer.methods.run import run
from slimformer.registry import METHODS
from slimformer.report import Figure, write_page
from slimformer.report.page import check_page
from slimformer.runtime.native import is_built
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.methods.method import Method


MODEL = "minilm"
#: Small enough for six minutes on two cores, all rows together.
SETTINGS: dict[str, Any] = {
    "task": "classification",
    "max_steps": 150,
    "batch_size": 32,
    "lr": 1e-4,
    "max_length": 48,
    "eval_every": 50,
    "log_every": 10,
    "group_by_length": True,
    "seed": 0,
}
#: By this file a folder is known to be a demo's.
MARK = "demo.json"


@dataclass(frozen=True)
class Trained:
    """A model that is to be measured: its title, how `compare` calls it, and the seconds of its training."""

    title: str
    place: str
    seconds: float


@dataclass
class Demo:
    """A running demo: where it works, and what it has found so far."""

    folder: Path
    settings: dict[str, Any]
    quiet: bool = False
    trained: list[Trained] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    @property
    def data(self) -> Path:
        """Where the reviews lie."""
        return self.folder / "data"

    @property
    def report(self) -> Path:
        """Where the report goes."""
        return self.folder / "report.html"

    @property
    def results(self) -> list[Path]:
        """Where artifacts go."""
        showcases = {name: METHODS.get(name).showcase for name in METHODS}
        tuned = [f"{name}-finetuned" for name, showcase in showcases.items() if showcase and showcase.finetune]
        return [self.folder / name for name in (*(name for name, showcase in showcases.items() if showcase), *tuned)]

    def claim(self) -> None:
        """Refuse, before any work, a folder with something in the way; else mark it as the demo's.

        In a folder of its own the demo replaces what an earlier one left as it was written; elsewhere nothing.
        """
        mine, mark = False, json.dumps({"slimformer": __version__}).encode()
        with suppress(OSError):  # another file of this name is somebody's
            mine = read_limited(self.folder / MARK, 1000).startswith(mark[:14])
        there = [] if mine or not self.folder.is_dir() else sorted(path.name for path in self.folder.iterdir())
        if others := [name for name in there if not is_litter(name)]:
            raise TrainingError(
                f"`{self.folder}` holds `{others[0]}`, which no demo made, so it is left alone; choose another `--out`"
            )
        check_writable(self.folder / MARK, "--out")
        check_page(self.report)
        for path in self.results:
            OutputDirectory(path).check({}, RunOptions(resume=True, overwrite=True))
        if not mine:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(self.folder / MARK, mark)

    def material(self, method: type[Method[Any]]) -> dict[str, Any]:
        """What a method learns from: the labelled reviews, or their texts alone."""
        if method.learns_from == "task":
            return {"data": str(self.data)}
        return {"corpus": [str(self.data / "train.jsonl")], "text_column": "text", "task": None}

    def measure(self) -> Comparison:
        """Measure all models, taking turns: on the native engine, or in torch where it is not built."""
        asked = {"task": self.settings["task"], "data": str(self.data), "limit": self.settings.get("limit")}
        options = TaskOptions.make(asked)
        places, titles = [each.place for each in self.trained], [each.title for each in self.trained]
        comparison = compare(places, options, engine="native" if is_built() else None)
        rows = [replace(row, name=title) for row, title in zip(comparison.rows, titles, strict=True)]
        return replace(comparison, rows=rows)

    def rows(self, comparison: Comparison) -> list[Row]:
        """What the demo shows of what was measured."""
        rows = []
        for row, trained in zip(comparison.rows, self.trained, strict=True):
            assert row.stored is not None
            accuracy = row.quality.metrics["accuracy"]
            rows.append(Row(row.name, accuracy, row.stored.own, row.parameters, row.latency.p50_ms, trained.seconds))
        return rows


def run_demo(folder: str | Path = "demo", quiet: bool = False, **settings: Any) -> tuple[list[Row], Path]:
    """Run the demo and write its report; return the rows and the report's path.

    Args:
        folder: Where the artifacts and the report go.
        quiet: Whether to say nothing while training.
        settings: What to do differently from `SETTINGS`.
    """
    start = time.monotonic()
    path = OutputDirectory.of(str(folder)).path
    assert path is not None
    demo = Demo(path, {**SETTINGS, **settings}, quiet)
    reviews = read_reviews()
    demo.claim()
    write_reviews(demo.data, reviews)
    for name in METHODS:
        _show(demo, name)
    comparison = demo.measure()
    rows, counts = demo.rows(comparison), {split: len(lines) for split, lines in reviews.items()}
    page = demo_page(demo, rows, comparison, counts, time.monotonic() - start)
    return rows, write_page(page, demo.report)


def _show(demo: Demo, name: str) -> None:
    """Run a method as its showcase says, note what is to be measured and draw its log."""
    method: type[Method[Any]] = METHODS.get(name)
    showcase, out = method.showcase, demo.folder / name
    if showcase is None:
        return
    base = MODEL if showcase.start_from is None else str(demo.folder / showcase.start_from)
    settings = {**demo.settings, **demo.material(method), **showcase.settings, method.starts_from: base}
    most, start = demo.settings["max_steps"], time.monotonic()
    settings |= {key: min(value, most) for key, value in settings.items() if key.endswith("_steps")}
    result = learned = _run(demo, name, out, settings)
    if showcase.finetune is not None:
        tuned = {"model": str(out), **demo.settings, **showcase.finetune, "data": str(demo.data)}
        result = _run(demo, "finetune", out.with_name(f"{name}-finetuned"), tuned)
    seconds = time.monotonic() - start
    assert result.folder is not None
    for size in showcase.sizes:
        demo.trained.append(Trained(f"{showcase.title} {size}", f"{result.folder}{AT}{size}", seconds))
    if not showcase.sizes:
        demo.trained.append(Trained(showcase.title, str(result.folder), seconds))
    if any("loss" in entry for entry in learned.log):
        demo.figures.append(learning_curves(name, learned))


def _run(demo: Demo, name: str, out: Path, settings: dict[str, Any]) -> RunResult:
    """Run a method with those of the settings that it has; what an earlier demo left there is replaced."""
    method: type[Method[Any]] = METHODS.get(name)
    for left in (out, out.with_name(f"{out.name}.finetuned")):
        OutputDirectory(left, method.files).training.clear()
    known = {key: value for key, value in settings.items() if key in method.config_class.model_fields}
    config = method.config_class.make({**known, "out": str(out)})
    if not demo.quiet:
        sys.stderr.write(f"{METHODS.help(name).rstrip('.')}\n")  # lines of progress tell steps, not what is trained
    return run(method, config, RunOptions(overwrite=True, quiet=demo.quiet))
