"""What adapting a sentence encoder to a domain is worth for retrieval there, and what it forgets elsewhere.

MiniLM on news (AG News: a title finds its description) and on the documentation of Python's standard library (the first
line of a docstring finds the rest): recall among the first 1 and 10, and the mean reciprocal rank, over pairs whose
texts are not trained on; and Spearman's correlation on STS-B (test), which is of neither domain. What is compared:

- the *base* as it is;
- *further pre-training* on the domain's texts (masked tokens), at 1e-4;
- *self-distillation* from the base again (arXiv 2210.02871), taught by the further pre-trained model: by the pooled
  embedding, which is the default for sentence encoders, or by all positions;
- *the base as teacher*: the same steps, kept to the pooled embeddings of the base itself;
- *TSDAE* (arXiv 2104.06979): a text from the embedding of some of its words, at its paper's 3e-5, alone and, with
  `--full`, with a round of self-distillation.

All have as many steps of as many texts, after a new head or decoder was trained alone. Results are kept after every
piece, and what is there is not done again; a run that is killed goes on from its checkpoint in `--work`. About 80
minutes of one core for news; `--domains news,python` for both, `--full` for three seeds and ten times the steps.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness import training_options
from harness.pieces import Pieces, add_piece_options
from slimformer import adapt
from slimformer.inference.embedding import embed
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.inference.pipeline import open_pipeline
from slimformer.models.pooling import normalize
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

NAME = "adapt_embeddings"
BASE = "base"
#: Settings of each method; `teacher` is the model of that name.
METHODS: dict[str, dict[str, Any]] = {
    "further pre-training": {},
    "self-distillation, pooled": {"teacher": "further pre-training"},
    "self-distillation, all positions": {"teacher": "further pre-training", "positions": "all"},
    "further pre-training, taught by the base, pooled": {"teacher": BASE},
    "TSDAE": {"objective": "tsdae", "lr": 3e-5},
    "TSDAE, self-distillation": {"objective": "tsdae", "lr": 3e-5, "teacher": "TSDAE"},
}
#: Methods that `--full` alone compares.
MORE = ("TSDAE, self-distillation",)
#: Words that a text and the first line of a docstring have at least, and the rest of a docstring, to be a pair.
FIRST, REST = 4, 12


class Domain(NamedTuple):
    """Pairs whose first text has to find the second, and texts to learn from, which are in no pair."""

    pairs: list[tuple[str, str]]
    texts: list[str]


@dataclass(frozen=True)
class Budget:
    """How long everything is: steps of training and of a new head, texts a step and their tokens, pairs, and seeds."""

    steps: int = 400
    head: int = 150
    batch: int = 16
    length: int = 64
    pairs: int = 2000
    seeds: int = 1
    full: bool = False
    tiny: bool = False


def news(data: Path) -> Domain:
    """AG News: titles and descriptions of the official test file, and all texts that are in no pair."""
    with (data / "ag_news" / "test.csv").open(newline="", encoding="utf-8") as file:
        rows = [(_clean(title), _clean(description)) for _, title, description in csv.reader(file)]
    with (data / "ag_news" / "subset_train.csv").open(newline="", encoding="utf-8") as file:
        texts = [_clean(text) for text, _ in csv.reader(file)]
    return _split(rows, [*texts, *(f"{title} {description}" for title, description in rows)])


def python(data: Path) -> Domain:
    """Docstrings of the standard library that this interpreter came with."""
    pairs, texts = [], []
    for docstring in dict.fromkeys(_docstrings(Path(sysconfig.get_path("stdlib")))):
        first, _, rest = (_clean(part) for part in docstring.strip().partition("\n"))
        if len(first.split()) >= FIRST and len(rest.split()) >= REST:
            pairs.append((first, rest))
        texts.append(_clean(docstring))
    return _split(pairs, texts)


DOMAINS = {"news": news, "python": python}


def _docstrings(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        if {"site-packages", "test", "tests", "idle_test", "lib2to3"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # there to be broken
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield docstring


def _split(pairs: list[tuple[str, str]], texts: list[str]) -> Domain:
    """Hold out a third of the pairs, by what they say, and leave out every text that has the second of one in it."""
    unique = list({second: (first, second) for first, second in pairs}.values())
    held_out = [pair for pair in unique if hashlib.sha256(pair[1].encode()).digest()[0] % 3 == 0]
    starts: dict[str, list[str]] = {}
    for _, second in held_out:
        starts.setdefault(_start(second), []).append(second)
    rest = [text for text in dict.fromkeys(texts) if len(text.split()) >= FIRST and not _contains(text, starts)]
    return Domain(held_out, rest)


def _start(text: str) -> str:
    return " ".join(text.split()[:4])


def _contains(text: str, starts: dict[str, list[str]]) -> bool:
    words = text.split()
    windows = {" ".join(words[place : place + 4]) for place in range(len(words))}
    return any(second in text for window in windows & starts.keys() for second in starts[window])


def _clean(text: str) -> str:
    return " ".join(text.replace("\\", " ").split())


class Table:
    """All that is done on one domain."""

    def __init__(self, domain: str, budget: Budget, pieces: Pieces, arguments: argparse.Namespace) -> None:
        self.domain, self.budget, self.pieces, self.arguments = domain, budget, pieces, arguments
        self.work = arguments.work / domain
        self.data = DOMAINS[domain](arguments.data)

    def everything(self) -> None:
        """The base, then all methods."""
        self.pieces.do(f"{self.domain}: {BASE}", lambda: {"method": BASE, **self.measure("minilm")})
        for seed in range(self.budget.seeds):
            for name in METHODS:
                if name not in MORE or self.budget.full or self.budget.tiny:
                    key = f"{self.domain}: {name}, seed {seed}"
                    self.pieces.do(key, lambda name=name, seed=seed: self.compare(name, seed))

    def compare(self, name: str, seed: int) -> dict[str, Any]:
        """Train by a method, and measure what came of it."""
        out, result = self.trained(name, seed)
        fell = 1 - result.metrics["reconstruction"] / result.metrics["reconstruction_before"]
        return {
            "method": name,
            "seed": seed,
            **self.measure(str(out)),
            "fell": round(fell, 3),
            "drift": round(result.metrics["drift"], 4),
            "steps": result.steps,
            "seconds_a_step": round(result.seconds / result.steps, 3),
        }

    def measure(self, model: str) -> dict[str, float]:
        """Retrieval inside the domain, and the agreement of similarities with people outside of it, in per cent."""
        pairs = self.data.pairs[: self.budget.pairs]
        pipeline = open_pipeline(model, task="retrieval")
        queries, answers = (normalize(embed(pipeline, list(texts))) for texts in zip(*pairs, strict=True))
        cosines = queries @ answers.T  # [pairs, pairs]
        own = np.diagonal(cosines)[:, None]
        ranks = (cosines > own).sum(1) + ((cosines == own).sum(1) + 1) / 2  # of equals, the middle
        limit = 24 if self.budget.tiny else None
        data = TaskOptions(task="stsb-similarity", data=str(self.arguments.data / "stsb"), limit=limit)
        scores = {
            "recall@1": np.mean(ranks <= 1),
            "recall@10": np.mean(ranks <= 10),
            "mrr": np.mean(1 / ranks),
            "stsb": evaluate_on_task(model, data, "test")["metrics"]["spearman"],
        }
        return {**{name: round(100 * float(score), 2) for name, score in scores.items()}, "pairs": len(pairs)}

    def trained(self, name: str, seed: int) -> tuple[Path, Any]:
        """What a method makes, trained now or read again where it was before."""
        changes = dict(METHODS[name])
        objective, teacher = changes.get("objective", "masked"), changes.pop("teacher", None)
        if teacher is not None:
            changes["teacher"] = "minilm" if teacher == BASE else str(self.trained(teacher, seed)[0])
        warmed = self.work / f"head-{objective}-{seed}"
        head = {"objective": objective, "trains": "head", "max_steps": self.budget.head}
        self.adapted(warmed, "minilm", seed, **head)
        out = self.work / f"{name} {seed}".replace(",", "").replace(" ", "-")
        return out, self.adapted(out, str(warmed), seed, **{"max_steps": self.budget.steps, **changes})

    def adapted(self, out: Path, model: str, seed: int, **changes: Any) -> Any:
        """One run on the texts of the domain."""
        settings = {"lr": 1e-4, **changes}
        return adapt(
            model=model,
            corpus=[str(self.texts())],
            out=str(out),
            rounds=0,
            keep_head="trains" in changes,
            max_length=self.budget.length,
            batch_size=self.budget.batch,
            seed=seed,
            resume=True,
            threads=self.arguments.threads,
            bf16=self.arguments.bf16,
            quiet=True,
            **settings,
        )

    def texts(self) -> Path:
        """The texts to learn from, a line each."""
        file = self.work / "texts.txt"
        if not file.exists():
            self.work.mkdir(parents=True, exist_ok=True)
            lines = self.data.texts[: 200 if self.budget.tiny else None]
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file


def summary(done: dict[str, Any]) -> dict[str, Any]:
    """Mean over seeds of each method in each domain."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, piece in done.items():
        groups.setdefault(name.partition(": ")[0], {}).setdefault(piece["method"], []).append(piece)
    names = ("recall@1", "recall@10", "mrr", "stsb", "fell", "drift", "seconds_a_step")
    table = {
        domain: {
            method: {
                **{
                    name: round(float(np.mean([each[name] for each in several])), 3)
                    for name in names
                    if name in several[0]
                },
                "seeds": len(several),
            }
            for method, several in methods.items()
        }
        for domain, methods in groups.items()
    }
    hours = sum(piece["cpu_seconds"] for piece in done.values()) / 3600
    return {**table, "cpu_hours": round(hours, 2)}


def main() -> None:
    """Do whatever is not done yet."""
    parser = training_options(__doc__)
    add_piece_options(parser, NAME)
    parser.add_argument("--domains", default="news")
    parser.add_argument("--full", action="store_true", help="both domains, three seeds, ten times the steps")
    arguments = parser.parse_args()
    if not (arguments.data / "ag_news").is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    budget = Budget()
    if arguments.full:
        budget, arguments.domains = Budget(steps=10 * budget.steps, head=300, seeds=3, full=True), ",".join(DOMAINS)
    if arguments.tiny:
        budget, arguments.domains = Budget(steps=2, head=2, batch=4, pairs=24, tiny=True), "python"
    pieces = Pieces(NAME, arguments, summary)

    def everything() -> None:
        for domain in arguments.domains.split(","):
            Table(domain, budget, pieces, arguments).everything()

    pieces.run(everything)


if __name__ == "__main__":
    main()
