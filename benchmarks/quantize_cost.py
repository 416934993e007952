"""What a step of quantization with a teacher costs against a fine-tuning step: time and peak memory.

Each measurement is a process of its own, because peak memory never falls; the two take turns. Memory is counted from
what the process holds once everything is imported, which is stricter than counting all of it.
"""

from __future__ import annotations

import copy
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import keep, options

STEP_LIMIT, MEMORY_LIMIT = 2.6, 2.2
WARM_UP = 2


def measure(kind: str, batch: int, length: int, steps: int, threads: int, seed: int) -> dict[str, float]:
    """Train MiniLM for a few steps in this process."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from slimformer import models
    from slimformer.methods.quantize.config import QuantizeConfig
    from slimformer.methods.quantize.student import kd_objective, quantize_numbers
    from slimformer.train import TrainingOptions, train
    from slimformer.train.loop.trainer import SlimTrainer  # noqa: F401  (imported before memory is read)

    torch.manual_seed(seed)
    ids = torch.randint(1000, 30000, (batch * steps, length))
    data = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.sum() % 2} for row in ids]
    clock: list[tuple[float, float]] = []

    def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
        clock.append((time.perf_counter(), time.process_time()))
        return {name: torch.stack([item[name] for item in items]) for name in items[0]}

    before = _resident()
    model = AutoModelForSequenceClassification.from_pretrained(models.resolve("minilm"), num_labels=2)
    objective = None
    if kind != "finetune":
        teacher = copy.deepcopy(model)
        config = QuantizeConfig(kd="map+output", balance="auto" if kind == "auto" else "fixed")
        quantize_numbers(model, config)
        objective = kd_objective(teacher, model, config)
    settings = TrainingOptions(max_steps=steps, batch_size=batch, save_every=10**6, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        train(model, settings, data, collate, Path(folder), objective=objective, quiet=True)
    wall, busy = (
        statistics.median([after - earlier for earlier, after in itertools.pairwise(times)][WARM_UP:])
        for times in zip(*clock, strict=True)
    )
    peak = _most_held()
    return {
        "step_seconds": wall,
        "step_cpu_seconds": busy,  # of all threads; what other processes on the machine take shows less in it
        "peak_mib": peak - before,
        "peak_with_imports_mib": peak,
    }


def _most_held() -> float:
    """MiB; what `getrusage` says would begin with the parent's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _resident() -> float:
    import psutil

    return psutil.Process().memory_info().rss / 2**20


def main() -> None:
    """Measure fine-tuning, map + output, and the automatic balance."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--one", help="measure this in the process itself and print it")
    arguments = parser.parse_args()
    sizes = (2, 8, 4) if arguments.tiny else (arguments.batch, arguments.length, arguments.steps)
    if arguments.one:
        print(json.dumps(measure(arguments.one, *sizes, arguments.threads, arguments.seed)))
        return
    kinds = ["finetune", "map+output"] if arguments.tiny else ["finetune", "map+output", "auto"]
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(1 if arguments.tiny else arguments.rounds):
        for kind in kinds:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", kind]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[kind].append(json.loads(done.stdout.splitlines()[-1]))
    figures = {
        kind: {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]}
        for kind, runs in found.items()
    }
    ratios = {
        kind: {name: round(value / figures["finetune"][name], 3) for name, value in figures[kind].items()}
        for kind in kinds[1:]
    }
    shown = ratios["map+output"]
    keep(
        "quantize_cost",
        arguments,
        {
            "batch": sizes[0],
            "length": sizes[1],
            "medians": figures,
            "ratio_to_finetune": ratios,
            "limits": {"step_seconds": STEP_LIMIT, "peak_mib": MEMORY_LIMIT},
            "within_limits": shown["step_seconds"] <= STEP_LIMIT and shown["peak_mib"] <= MEMORY_LIMIT,
        },
    )


if __name__ == "__main__":
    main()
