"""Step time of the trainer against a bare PyTorch loop: same model, same batches, same optimizer, taking turns."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from harness import keep, options
from slimformer import models
from slimformer.train import TrainingOptions, train
from slimformer.train.loop.sampler import EpochSampler

LIMIT = 1.05


class Clock:
    """Makes batches and notes when each was asked for; the time between two is one step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """One batch."""
        self.seconds.append(time.perf_counter())
        return {name: torch.stack([item[name] for item in items]) for name in items[0]}

    def steps(self, warm_up: int) -> list[float]:
        """Seconds of each step but the first ones."""
        return [after - before for before, after in itertools.pairwise(self.seconds)][warm_up:]


def fresh_model() -> torch.nn.Module:
    """MiniLM with a new head."""
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_pretrained(models.resolve("minilm"), num_labels=2)


def ours(data: list[dict[str, torch.Tensor]], batch: int, steps: int, threads: int) -> Clock:
    """The trainer."""
    clock = Clock()
    settings = TrainingOptions(max_steps=steps, batch_size=batch, save_every=10**6, log_every=10, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        train(fresh_model(), settings, data, clock, Path(folder), quiet=True)
    return clock


def bare(data: list[dict[str, torch.Tensor]], batch: int, steps: int) -> Clock:
    """What one would write by hand."""
    clock = Clock()
    model = fresh_model().train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-5, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, sampler=EpochSampler(len(data), 0), collate_fn=clock)
    for inputs in itertools.islice(itertools.cycle(loader), steps):
        loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return clock


def main() -> None:
    """Measure."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batch, length, steps, rounds = (4, 8, 4, 1) if arguments.tiny else (32, 32, 25, arguments.rounds)
    generator = torch.Generator().manual_seed(arguments.seed)
    ids = torch.randint(1000, 30000, (batch * steps, length), generator=generator)
    data = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.sum() % 2} for row in ids]
    taken: dict[str, list[float]] = {"trainer": [], "bare loop": []}
    for _ in range(rounds):
        taken["trainer"] += ours(data, batch, steps, arguments.threads).steps(warm_up=min(3, steps - 2))
        taken["bare loop"] += bare(data, batch, steps).steps(warm_up=min(3, steps - 2))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    ratio = medians["trainer"] / medians["bare loop"]
    keep(
        "trainer_overhead",
        arguments,
        {
            "batch": batch,
            "length": length,
            "steps_measured": {name: len(values) for name, values in taken.items()},
            "median_step_seconds": medians,
            "ratio": round(ratio, 4),
            "limit": LIMIT,
            "within_limit": ratio <= LIMIT,
        },
    )


if __name__ == "__main__":
    main()
