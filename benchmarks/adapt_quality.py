"""What further pre-training is worth before fine-tuning, and what self-distillation adds (arXiv 2210.02871).

MiniLM on ACL-ARC (citation intent), SciERC (relations) and the emotion of tweets: macro-F1 on test. Every model is
fine-tuned alike; what differs is what it starts from, or how fine-tuning keeps close to that:

- *fine-tuning* alone, and with RecAdam, MARS, R3F or SupCon;
- *further pre-training* on the training texts without labels, and twice as long;
- *self-distillation*, one round of as many steps, from the base again, taught by the further pre-trained model;
- ablations: self-distillation without reconstruction, by predictions, and by weights.

Pre-training passes over the texts ten times and fine-tuning five times. All of a task share one warmed-up head, and all
self-distilled ones one teacher. Texts of the test set are not pre-trained on. A run counts as pre-training only if the
loss on held-out text fell by a tenth; `fell` says by how much. The main methods have three seeds, the others one;
further pre-training for twice as long and the ablations are measured on SciERC, as in the paper. Results are kept after
every piece, and what is there is not done again; a run that is killed goes on from its checkpoint in `--work`, and a
model that was lost is trained again. About 8 hours of one core; two processes with other `--tasks` may share them.
`--full` has three seeds of everything on all tasks and 30 passes.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness import training_options
from harness.pieces import Pieces, add_piece_options
from slimformer import adapt, finetune
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.tasks import get_task
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

NAME = "adapt_quality"
#: Part by which the loss on held-out text has to fall.
FALL = 0.1


class Work(NamedTuple):
    """Folder of a task's data, and tokens of its texts."""

    folder: str
    length: int


TASKS = {
    "citation-intent": Work("citation_intent", 96),
    "scierc": Work("sciie-relation-extraction", 96),
    "tweet-emotion": Work("tweeteval-emotion", 64),
}
#: How fine-tuning keeps close to the base.
CLOSE = {"RecAdam": "recadam", "MARS": "mars", "R3F": "r3f", "SupCon": "supcon"}
#: Settings of a run that starts from the warmed head; `teacher` is the further pre-trained model.
PRETRAINED: dict[str, dict[str, Any]] = {
    "further pre-training": {},
    "self-distillation": {"teacher": True, "positions": "all"},
    "further pre-training, twice": {"times": 2},
    "self-distillation without reconstruction": {"teacher": True, "positions": "all", "reconstruction": 0.0},
    "self-distillation by predictions": {"teacher": True, "match": "predictions"},
    "self-distillation by weights, L2": {"teacher": True, "match": "weights-l2"},
    "self-distillation by weights, MARS": {"teacher": True, "match": "weights-mars"},
}
MAIN = ("fine-tuning", "further pre-training", "self-distillation")
#: The task of the paper's ablations (Table 5).
ABLATED = "scierc"


@dataclass(frozen=True)
class Budget:
    """How long everything is: passes of pre-training and of fine-tuning, steps of a new head, and seeds."""

    passes: float = 10.0
    tuning: float = 5.0
    head: int = 300
    seeds: int = 3
    full: bool = False
    tiny: bool = False


class Table:
    """All that is done on one task."""

    def __init__(self, task: str, budget: Budget, pieces: Pieces, arguments: argparse.Namespace) -> None:
        self.task, self.budget, self.pieces, self.arguments = task, budget, pieces, arguments
        self.data = str(arguments.data / TASKS[task].folder)
        self.work = arguments.work / task

    def everything(self) -> None:
        """All methods, the main ones first."""
        ablated = [name for name in PRETRAINED if name not in MAIN and (self.task == ABLATED or self.budget.full)]
        for name in ["self-distillation"] if self.budget.tiny else [*MAIN, *CLOSE, *ablated]:
            for seed in range(self.budget.seeds if name in MAIN or self.budget.full else 1):
                self.do(f"{name}, seed {seed}", lambda name=name, seed=seed: self.measure(name, seed))

    def do(self, name: str, work: Any) -> dict[str, Any]:
        """One piece of this task."""
        return self.pieces.do(f"{self.task}: {name}", work)

    def measure(self, name: str, seed: int) -> dict[str, Any]:
        """Fine-tune what a method starts from, and measure it on dev and test."""
        start, fell = ("minilm", None) if name not in PRETRAINED else self.pretrained(name, seed)
        out = self.work / f"{slug(name, seed)}-tuned"
        finetune(
            model=str(start),
            task=self.task,
            data=self.data,
            out=str(out),
            max_length=TASKS[self.task].length,
            epochs=self.budget.tuning,
            max_steps=2 if self.budget.tiny else None,
            limit=24 if self.budget.tiny else None,
            batch_size=16,
            lr=1e-4,
            group_by_length=True,
            keep_close=CLOSE.get(name),
            seed=seed,
            resume=True,
            **self.quietly(),
        )
        data = TaskOptions(data=self.data, limit=24 if self.budget.tiny else None)
        scores = {
            split: round(100 * evaluate_on_task(out, data, split)["metrics"]["f1_macro"], 2)
            for split in ("dev", "test")
        }
        shutil.rmtree(out)
        return {"method": name, "seed": seed, **scores, **({} if fell is None else fell)}

    def pretrained(self, name: str, seed: int) -> tuple[Path, dict[str, Any]]:
        """What came of pre-training, and by how much the loss on held-out text fell."""
        changes = dict(PRETRAINED[name])
        times, taught = changes.pop("times", 1), changes.pop("teacher", False)
        out = self.work / slug(name, seed)
        cache = out.with_name(f"{out.name}-cache")
        if taught:
            changes["teacher"] = str(self.pretrained("further pre-training", seed)[0])
            changes |= {"teacher_cache": str(cache)} if "positions" in changes else {}
        metrics = self.adapted(out, str(self.warmed(seed)), seed, times=times, **changes)
        shutil.rmtree(cache, ignore_errors=True)
        fell = 1 - metrics["reconstruction"] / metrics["reconstruction_before"]
        return out, {"fell": round(fell, 3), "counts": fell >= FALL, "drift": round(metrics["drift"], 4)}

    def warmed(self, seed: int) -> Path:
        """The base with a head that was trained alone."""
        out = self.work / f"head-{seed}"
        steps = 2 if self.budget.tiny else self.budget.head
        self.adapted(out, "minilm", seed, trains="head", max_steps=steps)
        return out

    def adapted(self, out: Path, model: str, seed: int, times: int = 1, **changes: Any) -> dict[str, float]:
        """One run on the texts of the task; read again where it was done before."""
        settings = {"max_steps": 2} if self.budget.tiny else {"epochs": times * self.budget.passes}
        result = adapt(
            model=model,
            corpus=[str(self.texts())],
            out=str(out),
            rounds=0,
            keep_head=True,
            max_length=TASKS[self.task].length,
            batch_size=32,
            group_by_length=True,
            lr=1e-4,
            seed=seed,
            resume=True,
            **self.quietly(),
            **{**settings, **changes},
        )
        return result.metrics

    def texts(self) -> Path:
        """The training texts, a line each."""
        file = self.work / "texts.txt"
        if not file.exists():
            self.work.mkdir(parents=True, exist_ok=True)
            data = get_task(self.task).load(self.data, ("train",), limit=200 if self.budget.tiny else None)
            lines = [" ".join(str(example["text"]).split()) for example in data["train"]]
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    def quietly(self) -> dict[str, Any]:
        """What all runs have in common."""
        return {"threads": self.arguments.threads, "bf16": self.arguments.bf16, "quiet": True}


def slug(name: str, seed: int) -> str:
    """The folder of what a method made."""
    return f"{name} {seed}".replace(",", "").replace(" ", "-")


def summary(done: dict[str, Any]) -> dict[str, Any]:
    """Mean and spread over seeds of each method on each task, and the mean over tasks."""
    table: dict[str, dict[str, list[float]]] = {}
    for name, piece in done.items():
        table.setdefault(piece["method"], {}).setdefault(name.partition(": ")[0], []).append(piece["test"])
    rows = {
        method: {
            task: {
                "mean": round(float(np.mean(values)), 2),
                "spread": round(float(np.std(values)), 2),
                "seeds": len(values),
            }
            for task, values in tasks.items()
        }
        for method, tasks in table.items()
    }
    means = {
        method: round(float(np.mean([each["mean"] for each in tasks.values()])), 2)
        for method, tasks in rows.items()
        if len(tasks) == len(TASKS)
    }
    hours = sum(piece["cpu_seconds"] for piece in done.values()) / 3600
    return {"f1_macro": rows, "mean": means, "cpu_hours": round(hours, 2)}


def main() -> None:
    """Do whatever is not done yet."""
    parser = training_options(__doc__)
    add_piece_options(parser, NAME)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--full", action="store_true", help="three seeds of everything on all tasks, 30 passes")
    arguments = parser.parse_args()
    if not (arguments.data / TASKS["scierc"].folder).is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    budget = Budget(passes=30.0, full=True) if arguments.full else Budget()
    if arguments.tiny:
        budget, arguments.tasks = Budget(seeds=1, tiny=True), "citation-intent"
    pieces = Pieces(NAME, arguments, summary)

    def everything() -> None:
        for task in arguments.tasks.split(","):
            Table(task, budget, pieces, arguments).everything()

    pieces.run(everything)


if __name__ == "__main__":
    main()
