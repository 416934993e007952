"""What the masking paper shows beside its main table, on MiniLM: ensembles, dissimilarity, paths, other data, sweeps.

Masks and fine-tuned models of some seeds on SST-2, and masks of MRPC and RTE with the first seed. Then: ensembles of
masks beside ensembles of fine-tuned models (Table 2), how far apart masks of tasks are in W_O (Fig. 5), the metric
along lines and along a curve with three trained bends between a fine-tuned and a masked model (Fig. 6 and 7), both on
other sentiment data beside the majority (Table 3), and parameters and bytes of many tasks (Fig. 3); on MRPC and SST-2
the share of weights that is dropped at the start (Fig. 1), and one to five blocks masked from either end (Fig. 2).
`--parts` chooses. `--full` takes four seeds and three epochs. Models and results are kept (`--models`), and what is
there is not made again, so it can be stopped and continued. Needs the data sets beside the checkout (`--data`).
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import RESULTS, kept, training_options, write
from slimformer import finetune, mask
from slimformer.methods.mask.analysis import (
    bezier_path,
    compare_ensembles,
    cross_data,
    linear_paths,
    mask_dissimilarity,
    memory_report,
)
from slimformer.train import TrainingOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

METHODS: dict[str, Any] = {"mask": mask, "finetune": finetune}
RATES = {"mask": 4e-3, "finetune": 2e-4}
#: Shares of weights dropped at the start, and blocks masked from one end: what is tried of each on these tasks.
SWEPT = ("mrpc", "sst2")
SPARSITIES = (0.01, 0.03, 0.05, 0.1, 0.3, 0.6, 0.95)
ENDS, COUNTS = ("top_down", "bottom_up"), (1, 3, 5)
PARTS = ("ensembles", "dissimilarity", "paths", "other_data", "memory", "sparsity", "blocks")
#: Data of the same labels as SST-2's, where they lie beside it.
OTHERS = ("imdb",)


class Shelf:
    """The models of this benchmark, trained when they are first asked for."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments = arguments
        self.folder = folder

    def data(self, task: str) -> str:
        """Where the data of a task lie."""
        return str(self.arguments.data / task)

    def model(self, method: str, task: str, seed: int) -> Path:
        """The artifact of one run; a run that was interrupted goes on where it was."""
        out = self.folder / f"{task}-{method}-{seed}"
        self.train(method, task, seed, out=str(out), resume=True)
        return out

    def train(self, method: str, task: str, seed: int, **changes: Any) -> Any:
        """One run."""
        arguments = self.arguments
        size: dict[str, Any] = {"epochs": 3.0} if arguments.full else {"max_steps": 300}
        if arguments.tiny:
            size = {"max_steps": 2, "limit": 16}
        return METHODS[method](
            model="minilm",
            task=task,
            data=self.data(task),
            seed=seed,
            lr=RATES[method],
            max_length=48,
            batch_size=32,
            group_by_length=True,
            threads=arguments.threads,
            bf16=arguments.bf16,
            quiet=True,
            **size,
            **changes,
        )

    def score(self, task: str, seed: int, **changes: Any) -> float:
        """What a mask with other settings reaches on dev, in points; nothing is saved."""
        metrics = self.train("mask", task, seed, **changes).metrics
        return round(100 * next(iter(metrics.values())), 2)


def parts(shelf: Shelf, seeds: list[int]) -> dict[str, Callable[[], dict[str, Any]]]:
    """Each part of the result, by name."""
    arguments, data = shelf.arguments, shelf.data("sst2")
    rows: dict[str, Any] = {"limit": 16} if arguments.tiny else {}
    tasks = ("sst2",) if arguments.tiny else ("sst2", "mrpc", "rte")
    others = {"sst2": data} | {name: shelf.data(name) for name in OTHERS if (arguments.data / name).is_dir()}

    def ensembles() -> dict[str, Any]:
        groups = {method: [shelf.model(method, "sst2", seed) for seed in seeds] for method in METHODS}
        return compare_ensembles(groups, data, **rows).data

    def dissimilarity() -> dict[str, Any]:
        masks = {task: shelf.model("mask", task, seeds[0]) for task in tasks}
        masks["sst2, another seed"] = shelf.model("mask", "sst2", seeds[1])
        return mask_dissimilarity(masks, matrices="o").data

    def paths() -> dict[str, Any]:
        ends = shelf.model("finetune", "sst2", seeds[0]), shelf.model("mask", "sst2", seeds[0])
        steps = 2 if arguments.tiny else 2000 if arguments.full else 200
        training = TrainingOptions(max_steps=steps, lr=1e-4, batch_size=8 if arguments.tiny else 32)
        points = 3 if arguments.tiny else 11
        line = linear_paths(
            {"fine-tuned to mask": ends, "base to mask": ("minilm", ends[1])}, data, points=points, **rows
        )
        curve = bezier_path(*ends, data, training=training, points=points, **rows)
        return {"lines": line.data, "curve": curve.data}

    def elsewhere() -> dict[str, Any]:
        models = {method: shelf.model(method, "sst2", seeds[0]) for method in METHODS}
        return cross_data(models, others, **rows).data

    return {
        "ensembles": ensembles,
        "dissimilarity": dissimilarity,
        "paths": paths,
        "other_data": elsewhere,
        "memory": lambda: memory_report("minilm", (1, 5, 10, 20)).data,
    }


def sweeps(shelf: Shelf, seeds: list[int]) -> dict[str, tuple[str, Callable[[], float]]]:
    """Each run of the two sweeps: its name, the sweep it belongs to, and what it reaches."""
    arguments = shelf.arguments
    tasks = SWEPT[:1] if arguments.tiny else SWEPT
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("sparsity", f"{share:g}", {"initial_sparsity": share})
        for share in (SPARSITIES[:1] if arguments.tiny else SPARSITIES)
    ]
    for end in ENDS:
        changes += [("blocks", f"{end} {count}", {end: count}) for count in (COUNTS[:1] if arguments.tiny else COUNTS)]
    return {
        f"{task}/{value}/{seed}": (sweep, lambda task=task, seed=seed, given=given: shelf.score(task, seed, **given))
        for seed in (seeds[:1] if arguments.tiny else seeds)
        for task in tasks
        for sweep, value, given in changes
    }


def tables(runs: dict[str, float]) -> dict[str, dict[str, dict[str, Any]]]:
    """Mean, deviation and seeds of each value on each task."""
    several: dict[str, dict[str, list[float]]] = {}
    for key, score in runs.items():
        task, value, _ = key.split("/")
        several.setdefault(task, {}).setdefault(value, []).append(score)
    return {
        task: {
            value: {
                "mean": round(statistics.mean(scores), 2),
                "deviation": round(statistics.stdev(scores), 2) if len(scores) > 1 else 0.0,
                "seeds": len(scores),
            }
            for value, scores in values.items()
        }
        for task, values in several.items()
    }


def main() -> None:
    """Make what is missing."""
    parser = training_options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    parser.add_argument("--models", type=Path, default=None, help="where trained models are kept between two runs")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure")
    parser.add_argument("--full", action="store_true", help="four seeds, three epochs, 2,000 steps for the curve")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    seeds = list(range(4 if arguments.full else 2))
    known: dict[str, Any] = {} if arguments.tiny else kept("mask_analysis")
    if known.get("full", arguments.full) != arguments.full:
        known = {}
    known["full"] = arguments.full
    with tempfile.TemporaryDirectory() as scratch:
        shelf = Shelf(arguments, Path(scratch) if arguments.models is None else arguments.models)
        chosen = arguments.parts.split(",")
        for name, measure in parts(shelf, seeds).items():
            if name in chosen and name not in known:
                known[name] = measure()
                note(name, arguments, known)
        for name, (sweep, score) in sweeps(shelf, seeds).items():
            part = known.setdefault(sweep, {"runs": {}}) if sweep in chosen else {"runs": {name: None}}
            if name not in part["runs"]:
                part["runs"][name] = score()
                part["tasks"] = tables(part["runs"])
                note(f"{sweep} {name}: {part['runs'][name]}", arguments, known)


def note(done: str, arguments: argparse.Namespace, known: dict[str, Any]) -> None:
    """Keep what is known, and say what came to it."""
    print(done, flush=True)
    if not arguments.tiny:
        write("mask_analysis", arguments, known)


if __name__ == "__main__":
    main()
