"""Ternary MiniLM with 8-bit activations on five tasks: which knowledge helps, and what is lost against the float model.

For each seed and task a float model is fine-tuned, rounded without training, and then quantized with each kind of
knowledge, all with the same steps but for the rows that are named longer. Results are kept after every run, and a run
that is there already is not repeated, so that an interrupted benchmark goes on where it was. A seed takes about two
and a half hours of one core that knows bfloat16, with `--bf16`; `--scale 4` trains four times as long, `--full` five
times with three seeds. Needs the data sets beside the checkout.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, NamedTuple

from harness import RESULTS, add_work_option, kept, training_options, work_folder, write
from slimformer import artifact, finetune, quantize
from slimformer.inference.evaluation import evaluate
from slimformer.methods.quantize import QuantizeConfig
from slimformer.methods.quantize.student import quantize_numbers
from slimformer.tasks.options import load_data


class Work(NamedTuple):
    """How a task is trained: its metric, tokens and texts of a batch, rate and steps, of quantization at scale 1."""

    metric: str
    tokens: int
    batch: int
    finetuning: int
    finetuning_lr: float
    quantizing: int


TASKS: dict[str, Work] = {
    "sst2": Work("accuracy", 48, 32, 800, 1e-4, 300),
    "rte": Work("accuracy", 128, 16, 800, 1e-4, 60),
    "cola": Work("matthews", 32, 32, 800, 1e-4, 200),
    "stsb": Work("pearson", 48, 32, 360, 2e-4, 60),
    "mrpc": Work("f1", 64, 16, 500, 2e-4, 60),
}
LONG = "map+output, four times as long"
LONG_BY_MATRIX = "map+output, one scale per matrix, four times as long"
#: Name in the table → settings; the ones that matter most come first.
VARIANTS: dict[str, dict[str, Any]] = {
    "map+output": {"kd": "map+output", "beta": 0.5},
    LONG: {"kd": "map+output", "beta": 0.5},
    LONG_BY_MATRIX: {"kd": "map+output", "beta": 0.5, "granularity": "matrix"},
    "no KD": {"kd": "none"},
    "auto": {"kd": "map+output", "balance": "auto"},
    "map": {"kd": "map"},
    "output": {"kd": "output"},
    "score": {"kd": "score"},
    "map+output, beta 0.1": {"kd": "map+output", "beta": 0.1},
    "map+output, beta 2": {"kd": "map+output", "beta": 2.0},
}
#: Runs that are measured on one task only.
ONLY_ON = {LONG_BY_MATRIX: "sst2", "map+output, beta 0.1": "cola", "map+output, beta 2": "cola"}
ROUNDED = "rounded without training"
FLOAT = "float"
TARGETS = {"lost on sst2": 0.7, "lost on sst2 with one scale per matrix": 1.5, "lost on average": 1.5}


class Bench:
    """One benchmark: what it was asked for, where models wait, and what is known so far."""

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.scale = 5.0 if arguments.full else 1.0
        self.work: Path = arguments.work
        self.result: dict[str, Any] = {} if arguments.tiny else kept("quantize_quality")
        plan = "full" if arguments.full else f"{arguments.steps} steps" if arguments.steps else None
        self.part = self.result if plan is None else self.result.setdefault("longer", {}).setdefault(plan, {})
        self.runs: dict[str, Any] = self.part.setdefault("runs", {})

    def common(self, task: str, seed: int) -> dict[str, Any]:
        """What fine-tuning and quantization of a task share."""
        length = 32 if self.arguments.tiny else TASKS[task].tokens
        shared = {"task": task, "data": str(self.arguments.data / task), "max_length": length, "seed": seed}
        small = {"limit": 32} if self.arguments.tiny else {}
        loop = {
            "batch_size": TASKS[task].batch,
            "group_by_length": True,
            "log_every": 100,
            "threads": self.arguments.threads,
            "bf16": self.arguments.bf16,
        }
        return {**shared, **small, **loop}

    def float_model(self, task: str, seed: int) -> Path:
        """The fine-tuned model, trained unless it waits from before."""
        folder = self.work / f"{task}-{seed}"
        if (folder / "slimformer.json").exists():
            return folder
        steps = 2 if self.arguments.tiny else TASKS[task].finetuning
        every = max(1, steps // 2)
        finetune(
            model="minilm",
            out=str(folder),
            max_steps=steps,
            lr=TASKS[task].finetuning_lr,
            eval_every=every,
            resume=True,
            **self.common(task, seed),
        )
        return folder

    def measure(self, task: str, seed: int, variant: str) -> dict[str, Any]:
        """Metrics of one variant."""
        folder = self.float_model(task, seed)
        if variant == FLOAT:
            return {"metrics": dict(next(iter(artifact.read_manifest(folder).metrics.values())))}
        if variant == ROUNDED:
            return {"metrics": self.rounded(task, seed, folder)}
        times = self.scale * (4 if variant in (LONG, LONG_BY_MATRIX) else 1)
        steps = 2 if self.arguments.tiny else self.arguments.steps or round(times * TASKS[task].quantizing)
        result = quantize(
            model=str(folder),
            max_steps=steps,
            eval_every=max(1, steps // 2),
            lr=4e-4,
            **VARIANTS[variant],
            **self.common(task, seed),
        )
        weights = [entry for entry in result.log if "map_weight" in entry]
        balance = {name: weights[-1][name] for name in ("map_weight", "output_weight")} if weights else {}
        return {"metrics": result.metrics, "steps": steps, "seconds": round(result.seconds, 1), **balance}

    def rounded(self, task: str, seed: int, folder: Path) -> dict[str, float]:
        """The float model with its numbers quantized as they are."""
        config = QuantizeConfig.make(self.common(task, seed))
        loaded = artifact.load(folder)
        data = load_data(config, ("train", "dev"))
        features = data.prepare("dev", loaded.processor, config.max_length)
        quantize_numbers(loaded.model, config)
        return evaluate(loaded.model, data, "dev", features, loaded.processor)

    def keep(self) -> None:
        """Write everything down, the tables anew."""
        self.part.update(tables(self.runs))
        self.result["targets"] = TARGETS
        if not self.arguments.tiny:
            write("quantize_quality", self.arguments, self.result)


def tables(runs: dict[str, Any]) -> dict[str, Any]:
    """Variants on all tasks, and those that were measured on one task beside what they compare with."""
    points: dict[str, dict[str, dict[int, float]]] = {}
    for key, run in runs.items():
        task, seed, variant = key.split("/")
        points.setdefault(variant, {}).setdefault(task, {})[int(seed)] = 100 * run["metrics"][TASKS[task].metric]
    everywhere = {name: row for name, row in points.items() if set(row) == set(TASKS)}
    return {
        "all_tasks": {
            name: {**{task: _mean(row[task]) for task in TASKS}, **_summary(_averages(row), everywhere.get(FLOAT))}
            for name, row in everywhere.items()
        },
        **{
            f"{task}_alone": {
                name: _summary(points[name][task], {task: points[FLOAT][task]})
                for name in (FLOAT, *VARIANTS)
                if task in points.get(name, {})
                and (name in (FLOAT, "map+output", LONG, "auto") or ONLY_ON.get(name) == task)
            }
            for task in dict.fromkeys(ONLY_ON.values())
            if task in points.get(FLOAT, {})
        },
    }


def _averages(row: dict[str, dict[int, float]]) -> dict[int, float]:
    """For each seed that all tasks have, the average over the tasks."""
    seeds = set.intersection(*(set(values) for values in row.values()))
    return {seed: statistics.mean(values[seed] for values in row.values()) for seed in sorted(seeds)}


def _summary(values: dict[int, float], floats: dict[str, dict[int, float]] | None) -> dict[str, Any]:
    """Mean and deviation over seeds, and how much is lost against the float models of the same seeds."""
    lost = [] if floats is None else [_averages(floats)[seed] - value for seed, value in values.items()]
    return {
        "mean": _mean(values),
        "deviation": round(statistics.stdev(values.values()), 2) if len(values) > 1 else 0.0,
        "seeds": len(values),
        "lost": round(statistics.mean(lost), 2) if lost else None,
    }


def _mean(values: dict[int, float]) -> float:
    return round(statistics.mean(values.values()), 2)


def main() -> None:
    """Run what has not been run yet."""
    parser = training_options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    add_work_option(parser, "quantize_quality")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--variants", default=None, help="names of the table, separated by semicolons; by default all")
    parser.add_argument("--seeds", default=None, help="by default 0,1; 0,1,2 with --full")
    parser.add_argument("--steps", type=int, default=None, help="steps of every quantization, whatever the task")
    parser.add_argument("--full", action="store_true", help="five times as long, three seeds")
    arguments = parser.parse_args()
    if arguments.steps and arguments.full:
        parser.error("`--steps` and `--full` both say how long; give one of them")
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    if arguments.tiny:
        arguments.tasks, arguments.variants = "sst2", "map+output;auto"
    seeds = "0" if arguments.tiny else arguments.seeds or ("0,1,2" if arguments.full else "0,1")
    with work_folder(arguments):
        bench = Bench(arguments)
        longer = (LONG, LONG_BY_MATRIX) if arguments.steps else ()
        chosen = arguments.variants.split(";") if arguments.variants else VARIANTS
        variants = [FLOAT, ROUNDED, *(each for each in chosen if each not in longer)]
        for seed in map(int, seeds.split(",")):
            for variant in variants:
                for task in arguments.tasks.split(","):
                    key = f"{task}/{seed}/{variant}"
                    if ONLY_ON.get(variant, task) == task and key not in bench.runs:
                        bench.runs[key] = bench.measure(task, seed, variant)
                        bench.keep()
                        print(f"{key}: {bench.runs[key]['metrics']}", flush=True)
        bench.keep()


if __name__ == "__main__":
    main()
