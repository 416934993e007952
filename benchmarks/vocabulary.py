"""What new word pieces are worth: MiniLM on the texts of ACL-ARC (citation intent) and SciERC.

Pieces are chosen on the training texts of both: 500, and 1,900, which is nearly all that they have a use for. Measured
on texts of their test sets: tokens, and milliseconds of encoding a text (one at a time, both models in turn); bytes of
the weights. Then macro-F1 of citation intent on test, fine-tuned for as many steps from the base and from each extended
model, at once and after further pre-training of as many steps on the training texts.

Results are kept after every piece, and what is there is not done again; models wait in `--work`. About 40 minutes of
one core for one seed; `--full` has three.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from harness import in_turn, options
from harness.pieces import Pieces, add_piece_options
from slimformer import adapt, extend, finetune
from slimformer.inference.door import open_model
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.tasks import get_task
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

NAME = "vocabulary"
#: Task → folder of its data.
TASKS = {"citation-intent": "citation_intent", "scierc": "sciie-relation-extraction"}
TUNED = "citation-intent"
#: New pieces; 0 for the base as it is.
COUNTS = (0, 500, 1900)
#: Tokens of the texts that are fine-tuned on, and of those that are pre-trained on.
LENGTH, SHORT = 96, 64


class Budget(NamedTuple):
    """Steps of fine-tuning, of further pre-training and of a new head; texts that are timed, and how often; seeds."""

    tuning: int = 300
    adapting: int = 200
    head: int = 50
    timed: int = 48
    rounds: int = 15
    seeds: int = 1
    counts: tuple[int, ...] = COUNTS
    limit: int | None = None


class Study:
    """All that is measured."""

    def __init__(self, budget: Budget, pieces: Pieces, arguments: argparse.Namespace) -> None:
        self.budget, self.pieces, self.arguments = budget, pieces, arguments
        self.work: Path = arguments.work
        self.quietly = {"threads": arguments.threads, "quiet": True}

    def everything(self) -> None:
        """Tokens and times first, then scores."""
        self.pieces.do("encoding", self.encoding)
        for seed in range(self.budget.seeds):
            for adapted in (False, True):
                for count in self.budget.counts:
                    name = f"{label(count, adapted)}, seed {seed}"
                    self.pieces.do(name, lambda c=count, a=adapted, s=seed: self.score(c, a, s))

    def encoding(self) -> dict[str, Any]:
        """Tokens, milliseconds and bytes of each vocabulary."""
        texts = self.texts("test")
        opened = {count: open_model(self.extended(count)) for count in self.budget.counts}
        rows = {}
        for count, each in opened.items():
            tokens = [len(ids) for ids in each.processor(texts)["input_ids"]]
            size = sum(weight.nbytes for weight in each.model.parameters())
            rows[count] = {"tokens": round(float(np.mean(tokens)), 2), "MB": round(size / 1e6, 2)}
        sample = texts[:: max(1, len(texts) // self.budget.timed)][: self.budget.timed]
        # Text by text, so that what else the machine does hits all alike.
        turns = [
            in_turn({str(count): encoder(each, text) for count, each in opened.items()}, self.budget.rounds)
            for text in sample
        ]
        for count, row in rows.items():
            seconds, before = (sum(turn[name] for turn in turns) for name in (str(count), "0"))
            row |= {"ms": round(1000 * seconds / len(sample), 3), "time": round(seconds / before, 3)}
        return {"texts": len(texts), "rows": {label(count): row for count, row in rows.items()}}

    def score(self, count: int, adapted: bool, seed: int) -> dict[str, Any]:
        """Macro-F1 in points on dev and test after fine-tuning."""
        start = self.adapted(count, seed) if adapted else self.extended(count)
        out, data = self.work / "tuned", str(self.arguments.data / TASKS[TUNED])
        finetune(
            model=str(start),
            task=TUNED,
            data=data,
            out=str(out),
            max_length=LENGTH,
            max_steps=self.budget.tuning,
            limit=self.budget.limit,
            batch_size=16,
            lr=1e-4,
            group_by_length=True,
            seed=seed,
            overwrite=True,
            **self.quietly,
        )
        settings = TaskOptions(data=data, limit=self.budget.limit)
        scores = {
            split: round(100 * evaluate_on_task(out, settings, split)["metrics"]["f1_macro"], 2)
            for split in ("dev", "test")
        }
        shutil.rmtree(out)
        return {"label": label(count, adapted), "seed": seed, **scores}

    def extended(self, count: int) -> str:
        """The base with new pieces; read again where it was done before."""
        if not count:
            return "minilm"
        out = str(self.work / f"words-{count}")
        extend(model="minilm", corpus=[str(self.corpus())], new_tokens=count, out=out, resume=True, quiet=True)
        return out

    def adapted(self, count: int, seed: int) -> str:
        """The base pre-trained further, with new pieces or without."""
        out = str(self.work / f"adapted-{count}-{seed}")
        adapt(
            model="minilm",
            corpus=[str(self.corpus())],
            new_tokens=count or None,
            out=out,
            rounds=0,
            head_steps=self.budget.head,
            max_steps=self.budget.adapting,
            max_length=SHORT,
            batch_size=16,
            lr=1e-4,
            seed=seed,
            resume=True,
            **self.quietly,
        )
        return out

    def corpus(self) -> Path:
        """The training texts of both tasks, a line each."""
        file = self.work / "texts.txt"
        if not file.exists():
            self.work.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(self.texts("train")) + "\n", encoding="utf-8")
        return file

    def texts(self, split: str) -> list[str]:
        """Texts of both tasks; of a tiny run the first of each."""
        texts = []
        for task, folder in TASKS.items():
            data = get_task(task).load(str(self.arguments.data / folder), (split,), limit=self.budget.limit)
            texts += [" ".join(str(example["text"]).split()) for example in data[split]]
        return texts


def label(count: int, adapted: bool = False) -> str:
    """What a row is called."""
    words = f"{count} new pieces" if count else "MiniLM"
    return f"{words}, adapted" if adapted else words


def encoder(opened: Any, text: str) -> Callable[[], None]:
    """What encodes a text, tokenizer included."""

    @torch.inference_mode()
    def encode() -> None:
        opened.model(**opened.processor(text, truncation=True, max_length=512, return_tensors="pt"))

    return encode


def summary(done: dict[str, Any]) -> dict[str, Any]:
    """Tokens and times of each vocabulary, and the mean and spread of scores over seeds."""
    scores: dict[str, list[float]] = {}
    for piece in done.values():
        if "label" in piece:
            scores.setdefault(piece["label"], []).append(piece["test"])
    return {
        "encoding": done.get("encoding", {}).get("rows", {}),
        "f1_macro": {
            name: {"mean": round(float(np.mean(values)), 2), "spread": round(float(np.std(values)), 2)}
            for name, values in scores.items()
        },
        "seeds": {name: len(values) for name, values in scores.items()},
        "cpu_minutes": round(sum(piece["cpu_seconds"] for piece in done.values()) / 60, 1),
    }


def main() -> None:
    """Do whatever is not done yet."""
    parser = options(__doc__)
    parser.set_defaults(threads=1)
    add_piece_options(parser, NAME)
    parser.add_argument("--full", action="store_true", help="three seeds")
    arguments = parser.parse_args()
    if not all((arguments.data / folder).is_dir() for folder in TASKS.values()):
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    torch.set_num_threads(arguments.threads)
    budget = Budget(seeds=3) if arguments.full else Budget()
    if arguments.tiny:
        budget = Budget(2, 2, 2, 2, 1, counts=(0, 10), limit=60)
    pieces = Pieces(NAME, arguments, summary)
    pieces.run(lambda: Study(budget, pieces, arguments).everything())


if __name__ == "__main__":
    main()
