"""Whether what two methods cost, or bring, adds up when one follows the other.

- *size*: a student of MiniLM with three blocks is distilled on unlabelled text and fine-tuned, then made ternary with
  its float self as teacher; beside it each of the two alone. On five tasks.
- *domain*: MiniLM is adapted to the texts of ACL-ARC or SciERC by self-distillation, and a student of three blocks is
  distilled from that on the same texts; beside it each of the two alone. Everything is fine-tuned alike.

`apart` is the sum of what the two change on their own, `together` what the chain changes, both in points against MiniLM
fine-tuned. Results are kept after every piece, and what is there is not done again; models wait in `--work`. About four
hours of one core that knows bfloat16 for one seed, with `--bf16`.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distill_quality import write_corpus
from harness import training_options
from harness.pieces import Pieces, add_piece_options
from slimformer import adapt, artifact, distill, finetune, quantize
from slimformer.tasks import get_task

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

NAME = "chains"
STUDENT = {"layers": 3, "hidden": 384, "heads": 12, "start": "spaced"}


class Work(NamedTuple):
    """How a task is trained: folder of its data, metric, tokens, and steps of fine-tuning and of quantization."""

    folder: str
    metric: str
    tokens: int
    tuning: int
    quantizing: int = 0


TASKS = {
    "sst2": Work("sst2", "accuracy", 48, 800, 600),
    "rte": Work("rte", "accuracy", 128, 400, 240),
    "cola": Work("cola", "matthews", 32, 800, 800),
    "stsb": Work("stsb", "pearson", 48, 540, 360),
    "mrpc": Work("mrpc", "f1", 64, 350, 240),
}
DOMAINS = {
    "citation-intent": Work("citation_intent", "f1_macro", 96, 530),
    "scierc": Work("sciie-relation-extraction", "f1_macro", 96, 1000),
}
#: Steps of distillation on general text and on that of a domain, of adapting and of a new head.
GENERAL, OWN, ADAPTING, HEAD = 1500, 800, 600, 200
#: Chain → its two parts, alone.
CHAINS = {"distilled, ternary": ("distilled", "ternary"), "adapted, distilled": ("adapted", "distilled")}
PLAIN = "fine-tuned"


class Chain:
    """The models of one seed, each made when it is first asked for."""

    def __init__(self, seed: int, pieces: Pieces, arguments: argparse.Namespace) -> None:
        self.seed, self.pieces, self.arguments = seed, pieces, arguments
        self.work: Path = arguments.work / f"seed-{seed}"

    def everything(self) -> None:
        """All rows of all tasks."""
        tiny = self.arguments.tiny
        for task in list(TASKS)[:1] if tiny else TASKS:
            rows: dict[str, Callable[[], float]] = {
                PLAIN: lambda task=task: self.tuned("minilm", task, TASKS[task], "float"),
                "distilled": lambda task=task: self.tuned(self.distilled("minilm", None), task, TASKS[task], "small"),
                "ternary": lambda task=task: self.ternary(task, "float"),
                "distilled, ternary": lambda task=task: self.ternary(task, "small"),
            }
            self.measure(task, rows)
        for task in list(DOMAINS)[:1] if tiny else DOMAINS:
            rows = {
                PLAIN: lambda task=task: self.tuned("minilm", task, DOMAINS[task], "float"),
                "adapted": lambda task=task: self.tuned(self.adapted(task), task, DOMAINS[task], "adapted"),
                "distilled": lambda task=task: self.tuned(self.distilled("minilm", task), task, DOMAINS[task], "small"),
                "adapted, distilled": lambda task=task: self.tuned(
                    self.distilled(self.adapted(task), task), task, DOMAINS[task], "adapted-small"
                ),
            }
            self.measure(task, rows)

    def measure(self, task: str, rows: dict[str, Callable[[], float]]) -> None:
        """One piece for each row."""
        for row, score in rows.items():
            if self.arguments.tiny and row not in CHAINS:
                continue  # the chain makes what it consists of
            key = f"{task}: {row}, seed {self.seed}"
            self.pieces.do(key, lambda row=row, score=score: {"task": task, "row": row, "score": round(score(), 2)})

    def tuned(self, model: str, task: str, work: Work, name: str) -> float:
        """Fine-tune a model on a task, or read again what was; its metric on dev, in points."""
        out = self.work / f"{task}-{name}"
        finetune(model=model, out=str(out), lr=1e-4, resume=True, **self.on(task, work, work.tuning))
        return self.score_of(out, work)

    def ternary(self, task: str, name: str) -> float:
        """Make a fine-tuned model ternary, its float self as teacher; the same metric."""
        work = TASKS[task]
        start, out = self.work / f"{task}-{name}", self.work / f"{task}-{name}-ternary"
        if not (start / "slimformer.json").exists():
            self.tuned("minilm" if name == "float" else self.distilled("minilm", None), task, work, name)
        quantize(model=str(start), out=str(out), lr=4e-4, resume=True, **self.on(task, work, work.quantizing))
        return self.score_of(out, work)

    def distilled(self, teacher: str, domain: str | None) -> str:
        """A student of a teacher, on the text of a domain or on general text."""
        out = self.work / ("student" if domain is None else f"{domain}-student-of-{Path(teacher).name}")
        corpus = write_corpus(self.arguments.data, self.work / "corpus") if domain is None else [self.texts(domain)]
        distill(
            teacher=teacher,
            corpus=corpus,
            out=str(out),
            max_steps=self.steps(GENERAL if domain is None else OWN),
            batch_size=32,
            max_length=64,
            lr=1e-3,
            warmup=0.05,
            resume=True,
            seed=self.seed,
            **STUDENT,
            **self.quietly(),
        )
        return str(out)

    def adapted(self, domain: str) -> str:
        """MiniLM adapted to the texts of a domain, in one round of self-distillation on all positions."""
        out = self.work / f"{domain}-adapted-base"
        adapt(
            model="minilm",
            corpus=[self.texts(domain)],
            out=str(out),
            positions="all",
            max_steps=self.steps(ADAPTING),
            head_steps=self.steps(HEAD),
            batch_size=32,
            max_length=DOMAINS[domain].tokens,
            group_by_length=True,
            lr=1e-4,
            resume=True,
            seed=self.seed,
            **self.quietly(),
        )
        return str(out)

    def texts(self, domain: str) -> str:
        """The training texts of a domain, a line each."""
        file = self.work / f"{domain}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = get_task(domain).load(self.arguments.data / DOMAINS[domain].folder, ("train",))["train"]
        file.write_text("".join(f"{' '.join(str(row['text']).split())}\n" for row in rows), encoding="utf-8")
        return str(file)

    def on(self, task: str, work: Work, steps: int) -> dict[str, Any]:
        """What fine-tuning and quantization on a task share."""
        limit = {"limit": 32} if self.arguments.tiny else {}
        return {
            "task": task,
            "data": str(self.arguments.data / work.folder),
            "max_length": work.tokens,
            "max_steps": self.steps(steps),
            "batch_size": 16,
            "group_by_length": True,
            "seed": self.seed,
            **limit,
            **self.quietly(),
        }

    def steps(self, count: int) -> int:
        """So many, or two."""
        return 2 if self.arguments.tiny else count

    def quietly(self) -> dict[str, Any]:
        """What all runs share."""
        return {"threads": self.arguments.threads, "bf16": self.arguments.bf16, "quiet": True}

    @staticmethod
    def score_of(folder: Path, work: Work) -> float:
        """The metric that a run left on dev."""
        metrics = next(iter(artifact.read_manifest(folder).metrics.values()))
        return 100 * metrics[work.metric]


def summary(done: dict[str, Any]) -> dict[str, Any]:
    """Means of every row, and for each chain what its parts change apart and together, task by task."""
    scores: dict[str, dict[str, list[float]]] = {}
    for piece in done.values():
        scores.setdefault(piece["task"], {}).setdefault(piece["row"], []).append(piece["score"])
    means = {
        task: {row: round(statistics.mean(each), 2) for row, each in rows.items()} for task, rows in scores.items()
    }
    chains: dict[str, Any] = {}
    for chain, parts in CHAINS.items():
        for task, rows in means.items():
            if {PLAIN, chain, *parts} <= set(rows):
                apart = sum(rows[part] - rows[PLAIN] for part in parts)
                together = rows[chain] - rows[PLAIN]
                chains.setdefault(chain, {})[task] = {
                    "apart": round(apart, 2),
                    "together": round(together, 2),
                    "difference": round(together - apart, 2),
                }
    hours = sum(piece["cpu_seconds"] for piece in done.values()) / 3600
    return {"scores": means, "chains": chains, "cpu_hours": round(hours, 2)}


def main() -> None:
    """Do whatever is not done yet."""
    parser = training_options(__doc__)
    add_piece_options(parser, NAME)
    parser.add_argument("--seeds", default="0")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    pieces = Pieces(NAME, arguments, summary)

    def everything() -> None:
        for seed in map(int, arguments.seeds.split(",")):
            Chain(seed, pieces, arguments).everything()

    pieces.run(everything)


if __name__ == "__main__":
    main()
