"""Can the paper's two cases of tasks be told apart by the range of the attention output? RTE and CoLA against SST-2.

The paper (arXiv 2211.11014) sees outliers on special tokens in BERT fine-tuned on RTE and CoLA (case 1, where the
attention output helps), and none on SST-2 (case 2, where the attention map does). Here a base is fine-tuned on each
task and seed, and `detect_case` looks at dev texts, of the base itself too. A limit exists where every model of case 1
has a larger ratio than every model of case 2. Results are kept after every run, and a run that is there already is
not repeated, so that an interrupted benchmark goes on where it was. A seed takes about half an hour of one core that
knows bfloat16, with `--bf16`. Needs the data sets beside the checkout.
"""

from __future__ import annotations

import math
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import AutoModel

from harness import RESULTS, add_work_option, keep, kept, training_options, work_folder
from slimformer import artifact, finetune, models
from slimformer.methods.quantize.analysis import detect_case, tokens_in
from slimformer.tasks import get_task

if TYPE_CHECKING:
    import torch

NAME = "detect_case"


class Work(NamedTuple):
    """A task: the case it is in the paper, its metric, and tokens and texts of a batch."""

    case: int
    metric: str
    tokens: int
    batch: int


TASKS = {
    "rte": Work(1, "accuracy", 128, 16),
    "cola": Work(1, "matthews", 32, 32),
    "sst2": Work(2, "accuracy", 48, 32),
}
#: Dev texts that are looked at.
TEXTS = 128


class Bench:
    """One benchmark: what it was asked for, where models wait, and what is known so far."""

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.settings = {"base": arguments.base, "steps": 2 if arguments.tiny else arguments.steps}
        known = {} if arguments.tiny else kept(NAME)
        same = all(known.get(name) == value for name, value in self.settings.items())
        self.runs: dict[str, Any] = known.get("runs", {}) if same else {}
        self.work: Path = arguments.work / f"{self.settings['steps']}-steps"

    def measure(self, task: str, seed: int) -> dict[str, Any]:
        """The metric of a fine-tuned model, its ratios and those of its base, block by block."""
        work = TASKS[task]
        folder = self.work / f"{task}-{seed}"
        if not (folder / "slimformer.json").exists():
            finetune(
                model=self.arguments.base,
                task=task,
                data=str(self.arguments.data / task),
                out=str(folder),
                max_steps=self.settings["steps"],
                batch_size=work.batch,
                max_length=work.tokens,
                lr=1e-4,
                seed=seed,
                bf16=self.arguments.bf16,
                threads=self.arguments.threads,
                group_by_length=True,
                resume=True,
                **({"limit": 32} if self.arguments.tiny else {}),
            )
        loaded = artifact.load(folder)
        metrics = next(iter(artifact.read_manifest(folder).metrics.values()))
        batch = self.texts(task, loaded.processor)
        special = tokens_in(batch, loaded.processor.all_special_ids)
        base = models.load_model(self.arguments.base, AutoModel).eval()
        return {
            work.metric: round(metrics[work.metric], 4),
            "ratio": [round(each, 3) for each in detect_case(loaded.model, batch, special).data.ratio],
            "ratio of the base": [round(each, 3) for each in detect_case(base, batch, special).data.ratio],
        }

    def texts(self, task: str, tokenizer: Any) -> dict[str, torch.Tensor]:
        """A batch of dev texts."""
        data = get_task(task).load(str(self.arguments.data / task), ("train", "dev"), limit=TEXTS)
        features = data.prepare("dev", tokenizer, TASKS[task].tokens)
        count = 8 if self.arguments.tiny else TEXTS
        batch = data.collator(tokenizer)([features[index] for index in range(min(count, len(features)))])
        return {name: value for name, value in batch.items() if name != "labels"}

    def keep(self) -> None:
        """Write everything down."""
        keep(NAME, self.arguments, {**self.settings, **verdict(self.runs), "runs": self.runs})


def verdict(runs: dict[str, Any]) -> dict[str, Any]:
    """The largest ratio of each task over its seeds, and the limit that tells the cases apart, if there is one."""
    largest: dict[str, list[float]] = {}
    bases: dict[str, list[float]] = {}
    for key, run in runs.items():
        task = key.partition("/")[0]
        largest.setdefault(task, []).append(max(run["ratio"]))
        bases.setdefault(task, []).append(max(run["ratio of the base"]))
    table = {
        task: {
            "case in the paper": TASKS[task].case,
            "ratio": round(statistics.mean(values), 3),
            "lowest": min(values),
            "highest": max(values),
            "of the base": round(statistics.mean(bases[task]), 3),
            "seeds": len(values),
        }
        for task, values in largest.items()
    }
    ones = [value for task, values in largest.items() if TASKS[task].case == 1 for value in values]
    twos = [value for task, values in largest.items() if TASKS[task].case == 2 for value in values]
    apart = bool(ones and twos) and min(ones) > max(twos)
    return {"tasks": table, "limit": round(math.sqrt(min(ones) * max(twos)), 3) if apart else None}


def main() -> None:
    """Run what has not been run yet."""
    parser = training_options(__doc__)
    parser.add_argument("--base", default="minilm")
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    add_work_option(parser, NAME)
    parser.add_argument("--steps", type=int, default=800, help="steps of fine-tuning")
    parser.add_argument("--seeds", default="0,1")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    with work_folder(arguments):
        bench = Bench(arguments)
        for seed in map(int, ("0" if arguments.tiny else arguments.seeds).split(",")):
            for task in TASKS:
                key = f"{task}/{seed}"
                if key not in bench.runs:
                    bench.runs[key] = bench.measure(task, seed)
                    bench.keep()
        bench.keep()
        shutil.rmtree(bench.work, ignore_errors=True)


if __name__ == "__main__":
    main()
