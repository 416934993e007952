"""Which block gets which size: measured sensitivity against the paper's least slope and its three other orders.

MatFormer (arXiv 2310.07707) leaves open how a budget is best spent over the blocks. Here stories15M is made elastic on
the first part of tinyshakespeare; as many budgets of parameters as told are drawn between its smallest and its largest
size, each is allocated in every way, and the models are compared on text that none of them was trained or calibrated
on. The same is done before any training, with the neurons ordered only.

*milliseconds*: as many budgets of time, drawn between the smallest and the largest size, are allocated by the times
that `measure_latency` takes; each model is extracted and timed in turn with the largest, and its share of the largest
one's time is compared with the share it may have. Needs a machine that does nothing else.

Needs the data and the weights beside the checkout; about an hour of one core, and a few minutes for the times.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness import RESULTS, keep, kept, training_options
from slimformer import artifact, elastic
from slimformer.sizes import (
    ORDERS,
    Allocation,
    Budget,
    Costs,
    Elastic,
    allocate,
    extract,
    importance,
    make_elastic,
    measure_latency,
    measure_sensitivity,
    reorder,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

SHARED = RESULTS.parents[2] / "shared"
TOKENS = 256
#: Texts of that length on which neurons are ordered and sensitivity is measured, and on which models are compared.
CALIBRATION, HELD_OUT = 16, 16
#: The one that others are compared with.
LEAST_SLOPE = "increasing"
PARTS = ("losses", "milliseconds")
#: Forwards of each model that is timed.
ROUNDS = 15


class Texts:
    """Token ids of text that is cut into parts: [texts, tokens]."""

    def __init__(self, path: Path, tokenizer: Any, tiny: bool) -> None:
        text = path.read_text(encoding="utf-8")
        ends = text[int(0.9 * len(text)) :]  # the preset trains on what comes first
        ids = torch.tensor(tokenizer(ends, add_special_tokens=False).input_ids)
        rows = ids[: len(ids) // TOKENS * TOKENS].view(-1, TOKENS)
        few = 1 if tiny else None
        self.calibration = rows[:CALIBRATION][:few]
        self.held_out = rows[CALIBRATION : CALIBRATION + HELD_OUT][:few]


@torch.inference_mode()
def loss(model: Any, ids: torch.Tensor) -> float:
    """Mean loss of a token, at the size in use."""
    return statistics.fmean(float(model(input_ids=row[None], labels=row[None]).loss) for row in ids)


def untrained(weights: Path, texts: Texts) -> Any:
    """Nested sizes in the order of their neurons' importance, and nothing more."""
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()
    reorder(model, importance(model, [{"input_ids": texts.calibration}]))
    make_elastic(model)
    return model


def trained(weights: Path, data: Path, work: Path, arguments: Any) -> Any:
    """The same after elastic training."""
    elastic(
        model=str(weights),
        task="tinyshakespeare",
        data=str(data),
        out=str(work / "elastic"),
        max_steps=2 if arguments.tiny else arguments.steps,
        batch_size=4,
        max_length=TOKENS // 2,
        lr=3e-4,
        seed=arguments.seed,
        threads=arguments.threads,
        bf16=arguments.bf16,
        calibration=CALIBRATION,
        best=False,
        resume=True,
        **({"limit": 8} if arguments.tiny else {}),
    )
    return artifact.load(work / "elastic").model


def compare(model: Any, texts: Texts, budgets: int, seed: int) -> dict[str, Any]:
    """Held-out losses of every way of allocating, budget by budget, and how often each beats the least slope."""
    sizes, costs = Elastic.of(model), Costs.of(model, "parameters")
    sensitivity = measure_sensitivity(sizes, lambda: loss(model, texts.calibration))

    @cache
    def held_out(allocation: Allocation) -> float:
        with sizes.at(allocation):
            return loss(model, texts.held_out)

    ways: dict[str, Callable[[Budget], Allocation]] = {
        order: lambda budget, order=order: allocate(sizes, budget, order)
        for order in ORDERS  # type: ignore[misc]
    }
    ways["sensitivity"] = lambda budget: allocate(sizes, budget, sensitivity=sensitivity)
    least, most = (costs.total(sizes.allocation(name)) for name in (sizes.names[0], sizes.names[-1]))
    draw = random.Random(seed)
    limits = [draw.uniform(least, most) for _ in range(budgets)]
    losses = {way: [held_out(choose(Budget(costs, limit))) for limit in limits] for way, choose in ways.items()}
    return {
        "sizes": {name: round(held_out(sizes.allocation(name)), 4) for name in sizes.names},
        "loss": {way: round(statistics.fmean(values), 4) for way, values in losses.items()},
        "against least slope": {way: _score(values, losses[LEAST_SLOPE]) for way, values in losses.items()},
        "sensitivity": [{size.name: round(value, 4) for size, value in row.items()} for row in sensitivity],
        "budgets": budgets,
    }


def _score(values: list[float], others: list[float]) -> dict[str, int]:
    """How often one is better than another on the same budget."""
    pairs = list(zip(values, others, strict=True))
    won, lost = sum(one < other for one, other in pairs), sum(one > other for one, other in pairs)
    return {"won": won, "equal": len(pairs) - won - lost, "lost": lost}


def milliseconds(weights: Path, texts: Texts, budgets: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """How models chosen by time keep to it: what each takes of the largest one's time, against what it may take."""
    model, ids = untrained(weights, texts), texts.held_out[:1, : 16 if arguments.tiny else TOKENS // 2]
    sizes = Elastic.of(model)
    costs = measure_latency(model, ids.shape[1], rounds=2 if arguments.tiny else 30)
    least, most = (costs.total(sizes.allocation(name)) for name in (sizes.names[0], sizes.names[-1]))
    draw, largest = random.Random(arguments.seed), extract(model, sizes.allocation(sizes.names[-1]))
    rows = []
    for _ in range(budgets):
        limit = draw.uniform(least, most)
        allocation = allocate(sizes, Budget(costs, limit))
        chosen = extract(model, allocation)
        rows.append((limit / most, costs.total(allocation) / most, share_of_time(chosen, largest, ids)))
    allowed, predicted, measured = np.array(rows).T
    excess = measured / allowed - 1
    return {
        "budgets": budgets,
        "smallest": round(least / most, 3),
        "kept": int((excess <= 0).sum()),
        "kept within 5 %": int((excess <= 0.05).sum()),
        "worst excess": round(float(excess.max()), 3),
        "median error of the prediction": round(float(np.median(np.abs(predicted / measured - 1))), 3),
        "correlation": round(float(np.corrcoef(predicted, measured)[0, 1]), 3),
        "shares of XL's time: allowed, predicted, measured": [[round(float(x), 3) for x in row] for row in rows],
    }


@torch.inference_mode()
def share_of_time(model: Any, other: Any, ids: torch.Tensor) -> float:
    """What a forward takes of another model's time, in the median of rounds in which they take turns."""
    ratios = []
    for number in range(2 + ROUNDS):
        marks = [time.perf_counter()]
        for each in (model, other):
            each(input_ids=ids)
            marks.append(time.perf_counter())
        if number >= 2:
            ratios.append((marks[1] - marks[0]) / (marks[2] - marks[1]))
    return statistics.median(ratios)


def compare_losses(texts: Texts, budgets: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Losses before and after training."""
    weights, seed = arguments.weights, arguments.seed
    result = {"before training": compare(untrained(weights, texts), texts, budgets, seed)}
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch) if arguments.tiny else arguments.work / f"{arguments.steps}-steps-{seed}"
        work.mkdir(parents=True, exist_ok=True)
        model = trained(weights, arguments.data, work, arguments)
    result["after training"] = compare(model, texts, budgets, seed)
    return result


def main() -> None:
    """Do the parts that were asked for; the others stay as they are."""
    parser = training_options(__doc__)
    parser.add_argument("--weights", type=Path, default=SHARED / "weights" / "stories15M")
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "tinyshakespeare")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "slimformer-elastic-allocation")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--budgets", type=int, default=100)
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments = parser.parse_args()
    if not (arguments.weights.is_dir() and arguments.data.is_dir()):
        print(f"skipped: no {arguments.weights} or {arguments.data}; give --weights and --data")
        return
    torch.set_num_threads(arguments.threads)
    budgets = 4 if arguments.tiny else arguments.budgets
    texts = Texts(arguments.data / "input.txt", AutoTokenizer.from_pretrained(arguments.weights), arguments.tiny)
    result = {} if arguments.tiny else kept("elastic_allocation")
    if "losses" in arguments.parts:
        result |= compare_losses(texts, budgets, arguments)
    if "milliseconds" in arguments.parts:
        result["milliseconds"] = milliseconds(arguments.weights, texts, budgets, arguments)
    keep("elastic_allocation", arguments, result)


if __name__ == "__main__":
    main()
