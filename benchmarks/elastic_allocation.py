"""Which block gets which size: measured sensitivity against the paper's least slope and its three other orders.

MatFormer (arXiv 2310.07707) leaves open how a budget is best spent over the blocks. Here stories15M is made elastic on
the first part of tinyshakespeare; as many budgets of parameters as told are drawn between its smallest and its largest
size, each is allocated in every way, and the models are compared on text that none of them was trained or calibrated
on. The same is done before any training, with the neurons ordered only. Needs the data and the weights beside the
checkout; about an hour of one core.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness import RESULTS, keep, training_options
from slimformer import artifact, elastic
from slimformer.sizes import (
    ORDERS,
    Allocation,
    Budget,
    Costs,
    Elastic,
    allocate,
    importance,
    make_elastic,
    measure_sensitivity,
    reorder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED = RESULTS.parents[2] / "shared"
TOKENS = 256
#: Texts of that length on which neurons are ordered and sensitivity is measured, and on which models are compared.
CALIBRATION, HELD_OUT = 16, 16
#: The one that others are compared with.
LEAST_SLOPE = "increasing"


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


def main() -> None:
    """Compare before and after training."""
    parser = training_options(__doc__)
    parser.add_argument("--weights", type=Path, default=SHARED / "weights" / "stories15M")
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "tinyshakespeare")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "slimformer-elastic-allocation")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--budgets", type=int, default=100)
    arguments = parser.parse_args()
    if not (arguments.weights.is_dir() and arguments.data.is_dir()):
        print(f"skipped: no {arguments.weights} or {arguments.data}; give --weights and --data")
        return
    torch.set_num_threads(arguments.threads)
    budgets = 4 if arguments.tiny else arguments.budgets
    texts = Texts(arguments.data / "input.txt", AutoTokenizer.from_pretrained(arguments.weights), arguments.tiny)
    result = {"before training": compare(untrained(arguments.weights, texts), texts, budgets, arguments.seed)}
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch) if arguments.tiny else arguments.work / f"{arguments.steps}-steps-{arguments.seed}"
        work.mkdir(parents=True, exist_ok=True)
        model = trained(arguments.weights, arguments.data, work, arguments)
    result["after training"] = compare(model, texts, budgets, arguments.seed)
    keep("elastic_allocation", arguments, result)


if __name__ == "__main__":
    main()
