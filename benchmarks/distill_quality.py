"""What distillation is worth: MiniLM-L6 into 3 blocks of 192, then fine-tuned on five tasks, against other starts.

The default size is cut to what two cores do in about 90 minutes: short texts, 600 steps of distillation, a few hundred
of fine-tuning, two seeds. `--steps 8000` distils longer and then fine-tunes long enough for a student to learn STS-B;
`--full` is the paper's recipe scaled to this corpus. Each has a table of its own in the result. Results are kept after
every task, and what is there is not done again; a run that is killed goes on from its checkpoint in `--work`. Needs the
data sets beside the checkout (`--data`).
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoModel

from harness import RESULTS, kept, training_options, write
from slimformer import artifact, distill, finetune, models
from slimformer.methods.distill import StudentShape
from slimformer.methods.distill.student import build_student
from slimformer.report import Series, curves
from slimformer.tasks import get_task

if TYPE_CHECKING:
    import argparse

SHAPE: dict[str, Any] = {"layers": 3, "hidden": 192, "heads": 12}
#: What the student goes through before it is fine-tuned; None for nothing but its start.
VARIANTS: dict[str, dict[str, Any] | None] = {
    "random start": None,
    "truncated teacher": None,
    "hidden states": {"objective": "hidden-states"},
    "MiniLM v1": {"objective": "minilm-v1"},
    "v2 (qq+kk+vv)": {"relations": "qq,kk,vv"},
    "v2 without qq": {"relations": "kk,vv"},
    "v2 without kk": {"relations": "qq,vv"},
    "v2 without vv": {"relations": "qq,kk"},
    "v2 with qk+vv": {"relations": "qk,vv"},
    "v2 from spaced blocks": {"relations": "qq,kk,vv", "start": "spaced"},
}
#: Variants that are measured where they are named: 48 relation heads are what the others have.
MORE = {f"v2 with {heads} relation heads": {"relations": "qq,kk,vv", "relation_heads": heads} for heads in (6, 12, 24)}
#: Task → its main metric and the settings of the default size.
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "sst2": ("accuracy", {"max_steps": 400, "max_length": 48}),
    "mrpc": ("f1", {"max_steps": 230, "max_length": 80}),
    "stsb": ("spearman", {"max_steps": 300, "max_length": 64}),
    "rte": ("accuracy", {"max_steps": 200, "max_length": 80}),
    "ag_news": ("accuracy", {"max_steps": 300, "max_length": 48}),
}
#: Steps of fine-tuning after a longer distillation.
LONGER = {"sst2": 1200, "mrpc": 700, "stsb": 1800, "rte": 600, "ag_news": 600}
DISTILLING = {"max_steps": 600, "batch_size": 32, "max_length": 64, "lr": 1e-3, "warmup": 0.05, "relation_heads": 48}
FULL_DISTILLING = {**DISTILLING, "max_steps": 20_000, "batch_size": 64, "max_length": 128, "lr": 6e-4}
TARGET = 3.0
#: The variant whose losses are drawn.
PLAIN = "v2 (qq+kk+vv)"


def write_corpus(data: Path, folder: Path) -> list[str]:
    """Reviews, passages, articles and the tasks' training texts, without labels: one document a line."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = {
        "tasks": [text for task in TASKS for text in training_texts(task, data)],
        "imdb": [example["text"] for example in get_task("imdb").load(data / "imdb", ("train",))["train"]],
        "lambada": read_lines(data / "lambada"),
        "wikitext-2": read_lines(data / "wikitext-2"),
    }
    paths = []
    for name, texts in sources.items():
        path = folder / f"{name}.txt"
        path.write_text("".join(f"{' '.join(text.split())}\n" for text in texts), encoding="utf-8")
        paths.append(str(path))
    return paths


def training_texts(task: str, data: Path) -> list[str]:
    """The texts a task is trained on."""
    examples = get_task(task).load(data / task, ("train",))["train"]
    return [example[side] for example in examples for side in ("text", "text_pair") if side in example]


def read_lines(folder: Path) -> list[str]:
    """Lines of the text files of a folder that are not measured on."""
    files = [path for path in sorted(folder.glob("*.txt")) if "test" not in path.name]
    return [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def make_student(
    variant: str, corpus: list[str], seed: int, arguments: argparse.Namespace, out: Path
) -> dict[str, Any]:
    """Write a student to `out`; return what its distillation cost and reached."""
    settings = {**VARIANTS, **MORE}[variant]
    if settings is None:
        if out.exists():
            return {"seconds": 0.0}
        start = "truncate" if variant == "truncated teacher" else "random"
        teacher = models.load_model("minilm", AutoModel)
        student = build_student(teacher, StudentShape(**SHAPE, start=start), seed)
        artifact.save(out, student, processor=models.load_processor("minilm"), step=artifact.Step(method="start"))
        return {"seconds": 0.0}
    how = FULL_DISTILLING if arguments.full else {**DISTILLING, "max_steps": arguments.steps}
    how = {**how, "max_steps": 2, "batch_size": 4, "max_length": 16} if arguments.tiny else how
    if settings.get("objective", "relations") != "relations":
        how = {name: value for name, value in how.items() if name != "relation_heads"}
    result = distill(
        teacher="minilm",
        corpus=corpus,
        out=str(out),
        seed=seed,
        threads=arguments.threads,
        bf16=arguments.bf16,
        log_every=50,
        resume=True,
        quiet=True,
        **SHAPE,
        **{**how, **settings},
    )
    names = ("step", *result.losses)
    curve = [{name: round(entry[name], 4) for name in names} for entry in result.log if "loss" in entry]
    return {
        "settings": {**how, **settings},
        "seconds": round(result.seconds, 1),
        "losses": result.losses,
        "curve": curve,
    }


def measure(task: str, student: Path, seed: int, arguments: argparse.Namespace) -> float:
    """Fine-tune a student on a task; its main metric on dev, in points."""
    metric, settings = TASKS[task]
    if arguments.full:
        settings = {"epochs": 3.0}
    elif arguments.steps > DISTILLING["max_steps"]:
        settings = {**settings, "max_steps": LONGER[task]}
    if arguments.tiny:
        settings = {"max_steps": 2, "limit": 32, "max_length": 16}
    result = finetune(
        model=str(student),
        task=task,
        data=str(arguments.data / task),
        seed=seed,
        lr=3e-4,
        batch_size=32,
        group_by_length=True,
        log_every=100,
        quiet=True,
        threads=arguments.threads,
        bf16=arguments.bf16,
        **settings,
    )
    return round(100 * result.metrics[metric], 2)


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    """For each variant the mean over seeds of each task and of their average, and what it gains over a random start."""
    table: dict[str, Any] = {}
    for variant, seeds in runs.items():
        whole = [run["tasks"] for run in seeds.values() if len(run["tasks"]) == len(TASKS)]
        if not whole:
            continue
        averages = [statistics.mean(tasks.values()) for tasks in whole]
        table[variant] = {
            **{task: round(statistics.mean(tasks[task] for tasks in whole), 2) for task in TASKS},
            "average": round(statistics.mean(averages), 2),
            "deviation": round(statistics.stdev(averages), 2) if len(averages) > 1 else 0.0,
            "seeds": len(averages),
        }
    for row in table.values():
        if "random start" in table:
            row["gain"] = round(row["average"] - table["random start"]["average"], 2)
    return table


def draw(runs: dict[str, Any], path: Path) -> None:
    """Losses of the relations over the steps, one line for each seed."""
    curves_of = {
        seed: run["distillation"]["curve"]
        for seed, run in runs.get(PLAIN, {}).items()
        if run.get("distillation", {}).get("curve")
    }
    if not curves_of:
        return
    panels = [
        (
            name,
            [
                Series(f"seed {seed}", [entry["step"] for entry in curve], [entry[name] for entry in curve])
                for seed, curve in curves_of.items()
            ],
        )
        for name in ("loss", "qq", "kk", "vv")
    ]
    path.write_text(curves(panels, x_label="optimizer step"), encoding="utf-8")


class Book:
    """The result: a table and runs for the default steps, and under `longer` the same for other plans.

    Args:
        arguments: What is measured now.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.result: dict[str, Any] = {} if arguments.tiny else kept("distill_quality")
        self.plan = "full" if arguments.full else f"{arguments.steps} steps"
        self.is_default = self.plan == f"{DISTILLING['max_steps']} steps"
        self.part = self.result if self.is_default else self.result.setdefault("longer", {}).setdefault(self.plan, {})
        self.runs: dict[str, Any] = self.part.setdefault("runs", {})

    def keep(self) -> None:
        """Write everything down, the table anew."""
        self.part["table"] = summary(self.runs)
        self.result["target"] = {"gain": TARGET}
        if not self.arguments.tiny:
            write("distill_quality", self.arguments, self.result)


def main() -> None:
    """Distil and fine-tune whatever is not measured yet."""
    parser = training_options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    parser.add_argument("--work", type=Path, default=None, help="folder that keeps students between runs")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--steps", type=int, default=DISTILLING["max_steps"], help="steps of distillation")
    parser.add_argument("--full", action="store_true", help="20,000 steps of distillation, three epochs a task")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    book = Book(arguments)
    variants = ["random start", PLAIN] if arguments.tiny else arguments.variants.split(",")
    tasks = ["sst2"] if arguments.tiny else list(TASKS)
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        corpus = write_corpus(arguments.data, work / "corpus")
        for seed in ["0"] if arguments.tiny else arguments.seeds.split(","):
            for variant in variants:
                run = book.runs.setdefault(variant, {}).setdefault(seed, {"tasks": {}})
                if set(tasks) <= set(run["tasks"]):
                    continue
                student = work / f"{book.plan}-{variant}-{seed}".replace(" ", "-")
                distillation = make_student(variant, corpus, int(seed), arguments, student)
                run.setdefault("distillation", distillation)
                for task in tasks:
                    if task not in run["tasks"]:
                        run["tasks"][task] = measure(task, student, int(seed), arguments)
                        book.keep()
                        print(f"{variant}, seed {seed}, {task}: {run['tasks'][task]}", flush=True)
    if not arguments.tiny and book.is_default:
        draw(book.runs, RESULTS / "distill_quality.svg")


if __name__ == "__main__":
    main()
