"""Masks against fine-tuning and LoRA of rank 8 on MiniLM: same steps, same batches, a learning rate picked for each.

Seven tasks, two seeds. Every rate is tried with the first seed, and where the best on dev is at the border, the next
one beyond, up to three times; the best with the other seeds too. `--methods finetune,mask` leaves LoRA out. Each task
has the steps, batch and length below, which takes about five hours of one core. Then masks that remove whole neurons
and heads, on SST-2: accuracy against measured speed. Results are kept after every run, and what is there is not run
again, so it can be stopped and continued. Needs the data sets beside the checkout (`--data`), and `peft`.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness import RESULTS, kept, training_options, write
from peers.lora_tuning import lora_tune
from slimformer import finetune, mask
from slimformer.inference.bench import bench

if TYPE_CHECKING:
    import argparse


class Work(NamedTuple):
    """How a task is trained: folder of its data, optimizer steps, texts of a batch, their length, blocks to mask."""

    folder: str
    steps: int
    batch: int
    length: int
    blocks: str = "2-"


TASKS: dict[str, Work] = {
    "sst2": Work("sst2", 300, 32, 48),
    "mrpc": Work("mrpc", 500, 16, 64),
    "rte": Work("rte", 400, 16, 64),
    "cola": Work("cola", 800, 32, 32),
    "ag_news": Work("ag_news", 200, 32, 48),
    "ud-pos": Work("ud-english-ewt", 250, 32, 64, "0-"),
    "ncbi-ner": Work("ner-NCBI-disease", 400, 32, 64, "0-"),
}
METHODS: dict[str, Any] = {"finetune": finetune, "mask": mask, "lora": lora_tune}
RATES = {"finetune": (1e-4, 2e-4, 4e-4), "mask": (2e-3, 4e-3, 8e-3), "lora": (1e-3, 2e-3, 4e-3)}
#: How often a rate beyond the border is tried.
WIDENINGS = 3
#: Masks that make the model faster, on SST-2.
STRUCTURED: dict[str, dict[str, Any]] = {
    "single weights": {},
    "neurons 50 %": {"structured": "neurons", "sparsity": 0.5},
    "neurons and heads 25 %": {"structured": "both", "sparsity": 0.25},
    "neurons and heads 50 %": {"structured": "both", "sparsity": 0.5},
    "neurons and heads 50 %, annealed": {"structured": "both", "sparsity": 0.5, "anneal": True},
}
GAP_LIMIT, SIZE_LIMIT = 1.0, 1 / 28


class Bench:
    """A run of this benchmark: its arguments and what is known so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.known: dict[str, Any] = {} if arguments.tiny else kept("mask_quality")
        self.runs: dict[str, Any] = self.known.setdefault("runs", {})

    def run(self, method: str, task: str, lr: float, seed: int, steps: int, **more: Any) -> dict[str, Any]:
        """Train once, or look up what came out of it before."""
        label = more.pop("label", "")
        key = f"{task} {method} lr={lr:g} seed={seed} steps={steps}{label}"
        if key not in self.runs:
            self.runs[key] = self._train(method, task, lr=lr, seed=seed, max_steps=steps, **more)
            print(f"{key}: {self.runs[key]['value']}", flush=True)
            self.keep()
        return self.runs[key]

    def _train(self, method: str, task: str, **settings: Any) -> dict[str, Any]:
        folder, _, batch, length, blocks = TASKS[task]
        if method == "mask":
            settings = {"blocks": blocks, **settings}
        speed: bool = settings.pop("speed", False)
        if self.arguments.tiny:
            settings.update(max_steps=2, limit=16)
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "out"
            result = METHODS[method](
                model="minilm",
                task=task,
                data=str(self.arguments.data / folder),
                out=None if method == "lora" else str(out),
                quiet=True,
                max_length=length,
                batch_size=batch,
                group_by_length=True,
                eval_every=max(1, settings["max_steps"] // 2),
                save_every=10**6,
                log_every=100,
                threads=self.arguments.threads,
                bf16=self.arguments.bf16,
                **settings,
            )
            measured: dict[str, Any] = {
                "metric": next(iter(result.metrics)),
                "value": round(next(iter(result.metrics.values())), 5),
                "seconds": round(result.seconds, 1),
            }
            if method == "lora":  # what an adapter and its head take
                trained = sum(weight.nbytes for weight in result.model.parameters() if weight.requires_grad)
                measured |= {"folder_bytes": trained, "weights_bytes": trained}
            else:
                measured |= {
                    "folder_bytes": sum(path.stat().st_size for path in out.iterdir()),
                    "weights_bytes": sum(path.stat().st_size for path in out.glob("*.safetensors")),
                }
            if speed:
                cost = bench(out, [(32, 32)], threads=self.arguments.threads, seconds=0.1 if self.arguments.tiny else 5)
                measured |= {"latency_ms": cost["latency_ms"]["p50"], "parameters": cost["parameters"]}
        return measured

    def compare(self, task: str, seeds: list[int]) -> None:
        """All methods on one task: every rate with the first seed, the best of them with the others."""
        steps = TASKS[task].steps
        for method in self.arguments.methods.split(","):
            lr = self.best_rate(method, task, seeds[0], steps)
            runs = [self.run(method, task, lr, seed, steps) for seed in seeds]
            values = [100 * run["value"] for run in runs]
            self.known.setdefault("tasks", {}).setdefault(task, {"metric": runs[0]["metric"], "steps": steps})[
                method
            ] = {
                "lr": lr,
                "mean": round(statistics.mean(values), 2),
                "deviation": round(statistics.stdev(values), 2) if len(values) > 1 else 0.0,
                "folder_bytes": runs[0]["folder_bytes"],
                "weights_bytes": runs[0]["weights_bytes"],
                "seconds": round(statistics.mean(run["seconds"] for run in runs), 1),
            }

    def best_rate(self, method: str, task: str, seed: int, steps: int) -> float:
        """The rate with the best score, from a grid that is widened where it is at the border."""
        rates = list(RATES[method][1:2] if self.arguments.tiny else RATES[method])
        for _ in range(1 if self.arguments.tiny else 1 + WIDENINGS):
            tried = {lr: self.run(method, task, lr, seed, steps)["value"] for lr in rates}
            best = max(rates, key=tried.__getitem__)
            if best not in (rates[0], rates[-1]):
                break
            rates = [best / 2, *rates] if best == rates[0] else [*rates, best * 2]
        return best

    def prune(self) -> None:
        """Masks over neurons and heads: what they reach and how fast the model is that they leave."""
        rows = {}
        steps = TASKS["sst2"].steps
        for name, given in STRUCTURED.items():
            settings = {"blocks": "0-", **given}
            rows[name] = self.run("mask", "sst2", 4e-3, 0, steps, label=f" {name}", speed=True, **settings)
        whole = rows["single weights"]["latency_ms"]
        self.known["structured"] = {
            name: {
                "accuracy": round(100 * row["value"], 2),
                "latency_ms": row["latency_ms"],
                "speed_up": round(whole / row["latency_ms"], 2),
                "parameters": row["parameters"],
            }
            for name, row in rows.items()
        }

    def summary(self) -> None:
        """Means over the tasks, and whether they are within the limits."""
        tasks = self.known.get("tasks", {})
        done = {task: row for task, row in tasks.items() if {"finetune", "mask"} <= set(row)}
        if not done:
            return
        everywhere = [method for method in METHODS if all(method in row for row in done.values())]
        means = {method: statistics.mean(row[method]["mean"] for row in done.values()) for method in everywhere}
        share = max(both["mask"]["folder_bytes"] / both["finetune"]["weights_bytes"] for both in done.values())
        with_lora = "lora" in everywhere
        self.known["mean"] = {method: round(value, 2) for method, value in means.items()}
        self.known["table"] = {
            task: {
                "steps": both["steps"],
                "fine-tuned": both["finetune"]["mean"],
                "its deviation": both["finetune"]["deviation"],
                "masked": both["mask"]["mean"],
                "mask's deviation": both["mask"]["deviation"],
                **({"LoRA": both["lora"]["mean"]} if with_lora else {}),
                **({"LoRA's deviation": both["lora"]["deviation"]} if with_lora else {}),
            }
            for task, both in done.items()
        }
        self.known["gap"] = round(means["finetune"] - means["mask"], 2)
        self.known["bytes_over_copy"] = round(share, 4)
        self.known["limits"] = {"gap": GAP_LIMIT, "bytes_over_copy": round(SIZE_LIMIT, 4)}
        self.known["complete"] = set(done) == set(TASKS)
        self.known["within_limits"] = self.known["gap"] <= GAP_LIMIT and share <= SIZE_LIMIT

    def keep(self) -> None:
        """Write down what is known."""
        if not self.arguments.tiny:
            write("mask_quality", self.arguments, self.known, peers=("peft",))


def main() -> None:
    """Compare on each task, then measure masks that make models faster."""
    parser = training_options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--methods", default=",".join(METHODS))
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    running = Bench(arguments)
    for task in ("sst2",) if arguments.tiny else arguments.tasks.split(","):
        running.compare(task, [0] if arguments.tiny else [int(seed) for seed in arguments.seeds.split(",")])
        running.summary()
    if arguments.tiny:
        for name in ("neurons 50 %", "neurons and heads 25 %", "neurons and heads 50 %, annealed"):
            del STRUCTURED[name]
    running.prune()
    running.keep()


if __name__ == "__main__":
    main()
