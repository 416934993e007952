"""MiniLM in float, quantized without labels (int8, int4, ternary) and trained in ternary, on SST-2 and STS-B.

Each model is fine-tuned once and quantized from there: without labels on the texts of the training split alone, and for
comparison with its labels. All are evaluated on the native engine where it runs, else in torch. Rows that are there
already are not run again; fine-tuned models stay in `--work`. Rows are kept by the fingerprint of the float model that
they were made from, and compared with that one alone. Needs the data sets beside the checkout.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any, NamedTuple

from harness import RESULTS, add_work_option, keep, kept, trained_in, training_options, work_folder
from slimformer import artifact, finetune, quantize
from slimformer.errors import SlimformerError
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.tasks.options import TaskOptions


class Work(NamedTuple):
    """A task: its metric, the columns with its texts, and its learning rate."""

    metric: str
    columns: tuple[int, ...]
    header: bool
    delimiter: str
    train: str
    lr: float


TASKS = {
    "sst2": Work("accuracy", (0,), True, "\t", "train.tsv", 1e-4),
    "stsb": Work("pearson", (0, 1), False, ",", "stsb-en-train.csv", 2e-4),
}
LENGTH = 48
#: Name of a row → settings beside those of the task; those without labels come first.
WITHOUT_LABELS: dict[str, dict[str, Any]] = {
    "int8, post-training": {"weights": "int8"},
    "int4, post-training": {"weights": "int4"},
    "ternary, post-training": {"weights": "ternary"},
}
TRAINED = "ternary, trained"
LESSON_LR = 5e-4
FLOAT = "float"
#: Points that may be lost, and minutes that post-training may take on two cores.
POINTS = {"int8, post-training": 0.3, "int4, post-training": 1.0}
MINUTES = 5.0
#: Characters of a fingerprint that name a float model.
SHORT = 12


class Bench:
    """One benchmark: what it was asked for, where models wait, and what is known so far."""

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.work: Path = arguments.work
        #: Task and float model → row → what it came to.
        self.runs: dict[str, dict[str, Any]] = {} if arguments.tiny else kept("post_training").get("by_model", {})

    def loop(self, steps: int) -> dict[str, Any]:
        """How models are trained."""
        arguments = self.arguments
        tiny = {"batch_size": 4} if arguments.tiny else {}
        return {
            "max_steps": 2 if arguments.tiny else steps,
            "max_length": LENGTH,
            "seed": arguments.seed,
            "threads": arguments.threads,
            "bf16": arguments.bf16,
            "log_every": 100,
            **tiny,
        }

    def task(self, task: str) -> dict[str, Any]:
        """What is trained on with labels."""
        limit = {"limit": 32} if self.arguments.tiny else {}
        return {"task": task, "data": str(self.arguments.data / task), **limit}

    def float_model(self, task: str) -> tuple[Path, str]:
        """The fine-tuned model, trained unless it waits from before, and its fingerprint."""
        folder = self.work / task
        if not (folder / "slimformer.json").exists():
            settings = {**self.task(task), **self.loop(self.arguments.steps), "lr": TASKS[task].lr}
            finetune(model="minilm", out=str(folder), resume=True, **settings)
        return folder, artifact.read_manifest(folder).model.fingerprint[:SHORT]

    def texts(self, task: str) -> Path:
        """The texts of the training split, one a line, without their labels; pairs as the tokenizer joins them."""
        work, target = TASKS[task], self.work / f"{task}.txt"
        with (self.arguments.data / task / work.train).open(encoding="utf-8", newline="") as file:
            quoting = csv.QUOTE_NONE if work.delimiter == "\t" else csv.QUOTE_MINIMAL
            rows = list(csv.reader(file, delimiter=work.delimiter, quoting=quoting))[work.header :]
        chosen = rows[:64] if self.arguments.tiny else rows
        lines = [" [SEP] ".join(row[column].strip() for column in work.columns) for row in chosen]
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return target

    def do(self, task: str) -> None:
        """The rows of a task that its float model has not got yet; each is kept as soon as it is there."""
        folder, fingerprint = self.float_model(task)
        rows = self.runs.setdefault(f"{task}, {fingerprint}", {})
        for row in (FLOAT, *WITHOUT_LABELS, TRAINED):
            if row not in rows:
                rows[row] = self.run(task, row, folder)
                self.keep()

    def run(self, task: str, row: str, folder: Path) -> dict[str, Any]:
        """One row of the table for one task, made from a float model."""
        minutes = (artifact.read_manifest(folder).steps[-1].duration_s or 0.0) / 60
        if row != FLOAT:
            target = self.work / f"{task}-{row.replace(', ', '-')}"
            settings = self.without_labels(task, row) if row in WITHOUT_LABELS else self.with_labels(task)
            start = time.perf_counter()
            quantize(model=str(folder), out=str(target), overwrite=True, **settings)
            # Reading texts and writing the file count too: that is how long somebody waits.
            folder, minutes = target, (time.perf_counter() - start) / 60
        return {
            **self.measure(task, folder),
            "minutes": round(minutes, 2),
            "threads": self.arguments.threads,
            "bytes": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
            "trained_in": trained_in(self.arguments),
        }

    def without_labels(self, task: str, row: str) -> dict[str, Any]:
        """Settings of post-training."""
        settings = WITHOUT_LABELS[row]
        shared = {"post_training": True, "corpus": str(self.texts(task)), **settings}
        loop = self.loop(self.arguments.lessons)
        if settings["weights"] != "ternary":
            loop = {name: loop[name] for name in ("max_length", "seed", "threads")}
            return {**shared, **loop, **({"calibration": 16} if self.arguments.tiny else {})}
        return {**shared, **loop, "lr": LESSON_LR}

    def with_labels(self, task: str) -> dict[str, Any]:
        """Settings of the usual ternary training, with as many steps as the one without labels."""
        return {**self.task(task), **self.loop(self.arguments.lessons), "lr": LESSON_LR}

    def measure(self, task: str, folder: Path) -> dict[str, Any]:
        """The metric in points, on the native engine where it is there and runs the model."""
        options = TaskOptions(**self.task(task))
        try:
            result, engine = evaluate_on_task(folder, options, engine="native"), "native"
        except SlimformerError as error:
            print(f"in torch: {error}")
            result, engine = evaluate_on_task(folder, options), "torch"
        return {"score": round(100 * result["metrics"][TASKS[task].metric], 2), "engine": engine}

    def keep(self) -> None:
        """Write everything down."""
        result = {"lines": lines(self.runs), "by_model": self.runs}
        keep("post_training", self.arguments, result)


def lines(runs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each quantized model: what it lost against its own float model, what was allowed, and a verdict.

    Points are those of the metric. Where nothing was promised there is no verdict: the model trained with labels stands
    beside the ones without.
    """
    told = []
    for model, rows in runs.items():
        task, fingerprint = model.split(", ")
        for row, run in rows.items():
            if row == FLOAT:
                continue
            line = {"task": task, "float_model": fingerprint, "row": row, "labels": row == TRAINED}
            lost, most = round(rows[FLOAT]["score"] - run["score"], 2), POINTS.get(row)
            line |= {"score": run["score"], "float": rows[FLOAT]["score"], "lost": lost, "minutes": run["minutes"]}
            if most is not None:
                line |= {"lost_at_most": most, "points_hold": lost <= most}
            if row in WITHOUT_LABELS:
                line |= {"minutes_at_most": MINUTES, "minutes_hold": run["minutes"] <= MINUTES}
            told.append(line)
    return told


def main() -> None:
    """Run what has not been run yet."""
    parser = training_options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    add_work_option(parser, "post_training")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--steps", type=int, default=500, help="steps of fine-tuning")
    # A step takes 1.5 s of one processor (32 texts, float32), what comes before and after 10 s: 250 steps on two cores,
    # which together do 1.7 times as much, take four minutes.
    parser.add_argument("--lessons", type=int, default=250, help="steps of the ternary models")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    if arguments.tiny:
        arguments.tasks = "sst2"
    with work_folder(arguments):
        bench = Bench(arguments)
        for task in arguments.tasks.split(","):
            bench.do(task)


if __name__ == "__main__":
    main()
