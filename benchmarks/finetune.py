"""Fine-tuned MiniLM on every task: the baselines the methods are compared with.

The default size is cut to what two cores do in about 90 minutes: two passes over SST-2, short lengths, two seeds.
`--full` trains three epochs with three seeds. Needs the data sets beside the checkout (`--data`).
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from harness import RESULTS, keep, kept, options
from slimformer import finetune

#: Task → (folder of its data, settings of the default size).
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "sst2": ("sst2", {"epochs": 2, "lr": 1e-4, "max_length": 64, "eval_every": 500}),
    "stsb": ("stsb", {"epochs": 2, "lr": 1e-4, "max_length": 64}),
    "rte": ("rte", {"epochs": 3, "lr": 1e-4, "max_length": 128}),
    "cola": ("cola", {"epochs": 3, "lr": 1e-4, "max_length": 48}),
    "mrpc": ("mrpc", {"epochs": 3, "lr": 1e-4, "max_length": 96}),
    "ag_news": ("ag_news", {"epochs": 2, "lr": 1e-4, "max_length": 64}),
    "ud-pos": ("ud-english-ewt", {"epochs": 1, "lr": 2e-4, "max_length": 64}),
    "ncbi-ner": ("ner-NCBI-disease", {"epochs": 2, "lr": 2e-4, "max_length": 64}),
    "arc": ("arc", {"epochs": 1, "lr": 1e-4, "max_length": 48}),
    "xquad": ("xquad", {"epochs": 4, "lr": 2e-4, "max_length": 256}),
}
TARGETS = {"sst2": {"accuracy": 0.89}, "stsb": {"spearman": 0.80}}


def run(task: str, arguments: Any, seed: int) -> dict[str, Any]:
    """Fine-tune once; the result names what was measured."""
    folder, settings = TASKS[task]
    settings = {"epochs": 3.0, **settings, "max_length": None} if arguments.full else settings
    if arguments.tiny:
        settings = {"max_steps": 2, "limit": 32, "max_length": 32 if task != "xquad" else 128}
    with tempfile.TemporaryDirectory() as scratch:
        result = finetune(
            model="minilm",
            task=task,
            data=str(arguments.data / folder),
            out=f"{scratch}/out",
            seed=seed,
            batch_size=32,
            group_by_length=True,
            log_every=100,
            threads=arguments.threads,
            **settings,
        )
    return {"seed": seed, "settings": settings, **{k: v for k, v in result.summary().items() if k != "out"}}


def spread(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and deviation over the seeds, metric by metric."""
    summary = {}
    for name in runs[0]["metrics"]:
        values = [one["metrics"][name] for one in runs]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        summary[name] = {"mean": round(statistics.mean(values), 4), "deviation": round(deviation, 4)}
    return summary


def main() -> None:
    """Fine-tune on each task with each seed; results are kept after every run."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default=None, help="by default 0,1; 0,1,2 with --full")
    parser.add_argument("--full", action="store_true", help="three epochs, whole lengths, three seeds")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    seeds = "0" if arguments.tiny else arguments.seeds or ("0,1,2" if arguments.full else "0,1")
    tasks = "sst2,ncbi-ner" if arguments.tiny else arguments.tasks
    result: dict[str, Any] = {} if arguments.tiny else kept("finetune")
    for seed in map(int, seeds.split(",")):
        for task in tasks.split(","):
            earlier = result.get(task, {"full": arguments.full, "runs": []})
            others = [one for one in earlier["runs"] if one["seed"] != seed and earlier["full"] == arguments.full]
            runs = sorted([*others, run(task, arguments, seed)], key=lambda one: one["seed"])
            result[task] = {"metrics": spread(runs), "target": TARGETS.get(task), "full": arguments.full, "runs": runs}
            keep("finetune", arguments, result)


if __name__ == "__main__":
    main()
