"""Step time of mask training against fine-tuning: same model, batches and optimizer, taking turns step by step."""

from __future__ import annotations

import logging
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging as reports

from harness import keep, options
from slimformer import models
from slimformer.methods.mask import MaskConfig
from slimformer.methods.mask.scores import Masking

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 1.25
#: What is trained: settings of the mask, or None for all weights.
KINDS: dict[str, dict[str, Any] | None] = {
    "fine-tuning": None,
    "mask, blocks 2-5": {},
    "mask, all blocks": {"blocks": "0-"},
    "mask, blocks 2-5, to half": {"sparsity": 0.5},
    "mask, neurons and heads": {"structured": "both", "sparsity": 0.5},
}


def stepper(settings: dict[str, Any] | None, steps: int) -> Callable[[dict[str, torch.Tensor]], None]:
    """A function that trains MiniLM for one step on a batch, as the trainer would."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(models.resolve("minilm"), num_labels=2)
    objective = None
    if settings is not None:
        objective = Masking.start(model, MaskConfig(max_steps=steps, **settings)).objective()
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0, fused=True)

    def step(batch: dict[str, torch.Tensor]) -> None:
        loss = model(**batch).loss if objective is None else objective(model, batch).total
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(batch: int, length: int, rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Median seconds of a step, on the clock and of the processor, for each kind."""
    generator = torch.Generator().manual_seed(seed)
    steppers = {kind: stepper(settings, rounds + 1) for kind, settings in KINDS.items()}
    clock: dict[str, list[float]] = {kind: [] for kind in KINDS}
    processor: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        ids = torch.randint(1000, 30000, (batch, length), generator=generator)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.sum(-1) % 2}
        for kind, step in steppers.items():
            start = time.perf_counter(), time.process_time()
            step(inputs)
            if number:  # the first step makes the optimizer's state
                clock[kind].append(time.perf_counter() - start[0])
                processor[kind].append(time.process_time() - start[1])
    return {
        name: {kind: round(statistics.median(values), 4) for kind, values in taken.items()}
        for name, taken in (("clock", clock), ("processor", processor))
    }


def main() -> None:
    """Measure."""
    reports.disable_progress_bar()
    reports.set_verbosity(logging.CRITICAL)
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batch, lengths, rounds = (4, (8,), 1) if arguments.tiny else (32, (32, 128), arguments.rounds)
    for kind in [*KINDS][2:] if arguments.tiny else ():
        del KINDS[kind]
    seconds = {str(length): measure(batch, length, rounds, arguments.seed) for length in lengths}
    ratio = {
        length: {kind: round(value / of["clock"]["fine-tuning"], 3) for kind, value in of["clock"].items()}
        for length, of in seconds.items()
    }
    default = {f"{length} tokens": kinds["mask, blocks 2-5"] for length, kinds in ratio.items()}
    keep(
        "mask_cost",
        arguments,
        {
            "batch": batch,
            "rounds": rounds,
            "median_step_seconds": seconds,
            "ratio": ratio,
            "default_ratio": default,
            "limit": LIMIT,
            "within_limit": max(default.values()) <= LIMIT,
        },
    )


if __name__ == "__main__":
    main()
