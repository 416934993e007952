"""Seconds of a step of `adapt`: further pre-training, self-distillation, and self-distillation with a filled cache.

Beside them a bare loop of Transformers' masked language modelling, which computes its head at all positions; ours is
computed at the hidden ones alone, and self-distillation runs model and teacher once more on the text as it is. Same
texts, batches, optimizer; MiniLM and a BERT of 12 blocks of 768 with new weights. The alternatives take turns, a few
steps of each in every round. Self-distillation with the cache should not be slower than the loop on MiniLM.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from harness import RESULTS, in_turn, keep, options
from slimformer import Anatomy
from slimformer.inference.door import look_up
from slimformer.methods.adapt.config import AdaptConfig
from slimformer.methods.adapt.texts import Texts
from slimformer.models import load_processor
from slimformer.objectives import Models, RecordedStudent, Teacher, TeacherCache, TermObjective, TermSpec, build_terms
from slimformer.objectives.recording import FEATURES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from torch import nn

NAME = "adapt_cost"
LENGTH, BATCH, BATCHES = 128, 32, 4
#: Steps of one alternative in one round.
STEPS = 2
BARE = "bare loop of Transformers"
#: Name → terms of the objective, and whether what the teacher says is kept.
OURS: dict[str, tuple[list[TermSpec], bool]] = {
    "further pre-training": ([TermSpec("reconstruction")], False),
    "self-distillation": ([TermSpec("reconstruction"), TermSpec("features")], False),
    "self-distillation, cached": ([TermSpec("reconstruction"), TermSpec("features")], True),
}


def texts_of(data: Path, count: int) -> Iterator[str]:
    """Lines of Shakespeare, put together to about the length of an example."""
    lines = [line for line in (data / "tinyshakespeare" / "input.txt").read_text("utf-8").splitlines() if line]
    for start in range(0, 24 * count, 24):
        yield " ".join(lines[start : start + 24])


def large(folder: Path) -> Path:
    """A BERT of 12 blocks of 768 with new weights and MiniLM's tokens."""
    tokenizer = load_processor("minilm")
    torch.manual_seed(0)
    transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def stepper(model: nn.Module, batches: list[dict[str, Any]], loss_of: Callable[[dict[str, Any]], Any]) -> Any:
    """What takes a few optimizer steps, each on the next batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    turns = itertools.cycle(batches)
    model.train()

    def run() -> None:
        for batch in itertools.islice(turns, STEPS):
            loss_of(batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def alternatives(inputs: Texts, batches: list[dict[str, Any]], cache: Path) -> dict[str, Callable[[], None]]:
    """Every way of taking a step, each with a model of its own."""
    bare = inputs.model(inputs.source.name)
    plain = [{"input_ids": b["masked.input_ids"], "attention_mask": b["attention_mask"]} for b in batches]
    for own, batch in zip(plain, batches, strict=True):
        own["labels"] = batch["masked.labels"]
    runs = {BARE: stepper(bare, plain, lambda batch: bare(**batch).loss)}
    for name, (specs, kept) in OURS.items():
        student, teacher = inputs.model(inputs.source.name), inputs.model(inputs.source.name)
        terms = build_terms(specs, Models(Anatomy.of(student), Anatomy.of(teacher)), variants=("clean", "masked"))
        memory = TeacherCache(cache, (FEATURES,), "the teacher") if kept else None
        objective = TermObjective(terms, student, {"teacher": Teacher(teacher, memory)})
        recorded = RecordedStudent(student, terms)
        runs[name] = stepper(recorded, batches, lambda batch, o=objective, r=recorded: o(r, batch).total)
    return runs


def measure(model: str, arguments: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """Seconds of a step in every way, and the ratio to the loop's."""
    batch, count, rounds = (2, 2, 1) if arguments.tiny else (BATCH, BATCHES, arguments.rounds)
    config = AdaptConfig.make({"model": model, "corpus": ["unused"], "max_length": 32 if arguments.tiny else LENGTH})
    inputs = Texts(config, look_up(model))
    encoded = inputs.processor(list(texts_of(arguments.data, batch * count)), truncation=True, max_length=inputs.length)
    items = [
        {name: torch.tensor(encoded[name][row]).int().numpy() for name in ("input_ids", "attention_mask")}
        for row in range(batch * count)
    ]
    masked, collate = inputs.features(items), inputs.collator()  # type: ignore[arg-type]
    batches = [collate([masked[index] for index in range(at, at + batch)]) for at in range(0, len(items), batch)]
    runs = alternatives(inputs, batches, cache)
    # The first rounds fill the cache.
    medians = in_turn(runs, rounds, warm_up=1 if arguments.tiny else -(-count // STEPS))
    return {
        "tokens": sum(len(item["input_ids"]) for item in items) // count,
        "seconds": {name: round(value / STEPS, 4) for name, value in medians.items()},
        "ratio to the loop": {name: round(value / medians[BARE], 3) for name, value in medians.items()},
    }


def main() -> None:
    """Measure both models."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        places = {"MiniLM": "minilm"}
        if not arguments.tiny:
            places["12 x 768"] = str(large(Path(scratch) / "large"))
        result = {}
        for name, place in places.items():
            result[name] = measure(place, arguments, Path(scratch) / f"cache of {name}")
            keep(NAME, arguments, result)  # of the large one a round takes a minute


if __name__ == "__main__":
    main()
