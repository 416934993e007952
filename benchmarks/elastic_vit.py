"""Elastic ViTs (MatViT, arXiv 2310.07707 section 4.2): accuracy of each size, pre-training, and adaptive retrieval.

*scratch*: a small ViT on fashion-mnist and on cifar10-jpg, one elastic run of 4X steps against separate models, as wide
as S, M, L and XL, of X steps each. *transfer*: the ViT trained on cifar10-jpg, plain or elastic, each of 4X steps, is
fine-tuned on fashion-mnist, plain or elastic: Table 7's two by two. *deit*: the real DeiT-tiny, its positions
interpolated to images of 112 pixels, made elastic on cifar10-jpg, with one size a step or all of them on a batch each,
against plain fine-tuning of equal steps. *retrieval*: 1-NN on [CLS] of cifar10-jpg's test images among its training
images, with one size on both sides (equal) and with a database encoded by XL (adaptive), for both elastic models and
for the separate ones.

The default size takes about 90 minutes on two cores. Results are kept after every run and what is there is not run
again; models lie in `--work` for the parts that need them, and a run that is killed goes on from its checkpoint there.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from harness import RESULTS, add_work_option, keep, kept, training_options, work_folder
from harness.vision import write_processor, write_smaller
from slimformer import elastic, finetune, load
from slimformer.models import load_processor
from slimformer.sizes import RATIOS, Elastic, is_elastic, make_plain
from slimformer.tasks import get_task
from slimformer.tasks.metrics import one_nearest_neighbour
from slimformer.views import snapshot

if TYPE_CHECKING:
    import argparse

NAME = "elastic_vit"
SIZES = dict(zip(("S", "M", "L", "XL"), RATIOS, strict=True))
#: Task → folder of its data.
DATA = {"fashion-mnist": "fashion-mnist", "cifar10": "cifar10-jpg"}
#: X; steps of fine-tuning on fashion-mnist; steps of DeiT.
STEPS, TRANSFER_STEPS, DEIT_STEPS = 400, 300, 400
PIXELS, DEIT_PIXELS = 32, 112
#: Images of the database and queries of retrieval.
DATABASE, QUERIES = 4000, 1000
#: The run of DeiT in which each step trains all sizes.
JOINT = "deit elastic, all in each step"
PARTS = ("scratch", "transfer", "deit", "retrieval")
#: A small ViT: 64 patches and [CLS] go through four blocks of 128.
SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "patch_size": 4, "image_size": PIXELS}
NEURONS = 512
SCRATCH = {"lr": 1e-3, "batch_size": 64, "order": "none", "distil": 0.0}


class Bench:
    """A run of this benchmark: its arguments and what is known so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.work: Path = arguments.work
        self.known: dict[str, Any] = {} if arguments.tiny else kept(NAME)
        self.runs: dict[str, Any] = self.known.setdefault("runs", {})

    def train(self, key: str, base: Path, task: str, steps: int, *, nested: bool, **settings: Any) -> Path:
        """The model of a run, trained now if need be; its accuracy is kept."""
        out = self.work / key.replace(" ", "-")
        if key in self.runs and (out / "slimformer.json").exists():
            return out
        if self.arguments.tiny:
            settings = {**settings, "limit": 24, "batch_size": 4}
            steps = 2
        settings = settings if nested else {k: v for k, v in settings.items() if k not in ("order", "distil")}
        result = (elastic if nested else finetune)(
            model=str(base),
            task=task,
            data=str(self.arguments.data / DATA[task]),
            out=str(out),
            max_steps=steps,
            warmup=0.1,
            clip=1.0,
            eval_every=steps,
            save_every=100,
            log_every=100,
            seed=self.arguments.seed,
            threads=self.arguments.threads,
            bf16=self.arguments.bf16,
            resume=True,
            quiet=True,
            **settings,
        )
        metrics = result.metrics
        accuracy = {size: metrics[f"accuracy@{size}"] for size in SIZES} if nested else {"XL": metrics["accuracy"]}
        self.keep(key, {size: round(100 * value, 2) for size, value in accuracy.items()})
        return out

    def keep(self, key: str, values: dict[str, float]) -> None:
        """Note what a run came to."""
        self.runs[key] = values
        keep(NAME, self.arguments, self.known)

    def new(self, share: float) -> Path:
        """A ViT with new weights and that share of the neurons."""
        folder = self.work / f"new-{share:g}"
        if not (folder / "config.json").exists():
            torch.manual_seed(self.arguments.seed)
            config = transformers.ViTConfig(**SMALL, intermediate_size=round(NEURONS * share))
            transformers.ViTModel(config).save_pretrained(folder)
            write_processor(folder, PIXELS)
        return folder

    def elastic_from_scratch(self, task: str) -> Path:
        """All sizes in one run of 4X steps."""
        return self.train(f"scratch {task} elastic", self.new(1), task, 4 * STEPS, nested=True, **SCRATCH)

    def separate(self, task: str, size: str) -> Path:
        """One size by itself in X steps."""
        return self.train(
            f"scratch {task} separate {size}", self.new(SIZES[size]), task, STEPS, nested=False, **SCRATCH
        )

    def scratch(self) -> None:
        """One run against four."""
        table = {}
        for task in DATA:
            self.elastic_from_scratch(task)
            for size in SIZES:
                self.separate(task, size)
            table[task] = {
                "elastic": self.runs[f"scratch {task} elastic"],
                "separate": {size: self.runs[f"scratch {task} separate {size}"]["XL"] for size in SIZES},
            }
            self.known["scratch"] = table

    def transfer(self) -> None:
        """Plain and elastic pre-training, plain and elastic fine-tuning."""
        task, target = "cifar10", "fashion-mnist"
        once = self.elastic_from_scratch(task)
        plain = self.train(f"pre-trained {task} plain", self.new(1), task, 4 * STEPS, nested=False, **SCRATCH)
        bases = {"plain": {False: plain, True: plain}, "elastic": {False: self.largest(once), True: once}}
        table = {}
        for before, by_method in bases.items():
            for after, nested in (("plain", False), ("elastic", True)):
                settings: dict[str, Any] = {"lr": 5e-4, "batch_size": 64}
                key = f"transfer {before} to {after}"
                self.train(key, by_method[nested], target, TRANSFER_STEPS, nested=nested, **settings)
                table[f"{before} → {after}"] = self.runs[key]
        self.known["transfer"] = table

    def largest(self, folder: Path) -> Path:
        """The largest size of an elastic artifact as a plain checkpoint."""
        out = folder.with_name(f"{folder.name}-plain")
        if not (out / "config.json").exists():
            loaded = load(folder)
            make_plain(loaded.model).save_pretrained(out)
            loaded.processor.save_pretrained(out)
        return out

    def elastic_deit(self) -> Path:
        """DeiT-tiny made elastic, ordered and taught by its largest size."""
        settings = {"lr": 2e-4, "batch_size": 32}
        return self.train("deit elastic", self.deit_base(), "cifar10", DEIT_STEPS, nested=True, **settings)

    def deit(self) -> None:
        """A real pretrained ViT."""
        settings = {"lr": 2e-4, "batch_size": 32}
        self.elastic_deit()
        self.train("deit plain", self.deit_base(), "cifar10", DEIT_STEPS, nested=False, **settings)
        joint = {**settings, "training": "joint", "batch_size": len(SIZES) * settings["batch_size"]}
        self.train(JOINT, self.deit_base(), "cifar10", DEIT_STEPS, nested=True, **joint)
        names = {"elastic": "deit elastic", "elastic, all in each step": JOINT, "plain": "deit plain"}
        self.known["deit"] = {name: self.runs[key] for name, key in names.items()}

    def deit_base(self) -> Path:
        """DeiT-tiny for smaller images."""
        folder = self.work / f"deit-{DEIT_PIXELS}"
        if not (folder / "preprocessor_config.json").exists():
            write_smaller(self.arguments.weights, folder, DEIT_PIXELS)
        return folder

    def retrieval(self) -> None:
        """Images that find their like, one size on both sides or a database encoded by the largest."""
        models: dict[str, dict[str, Path]] = {
            "ViT, elastic": dict.fromkeys(SIZES, self.elastic_from_scratch("cifar10"))
        }
        models["ViT, separate"] = {size: self.separate("cifar10", size) for size in SIZES}
        if self.arguments.weights.is_dir():
            models["DeiT, elastic"] = dict.fromkeys(SIZES, self.elastic_deit())
        for name, folders in models.items():
            key = f"retrieval {name}"
            if key not in self.runs:
                self.keep(key, self.look_up(folders))
            self.known.setdefault("retrieval", {})[name] = self.runs[key]

    def look_up(self, folders: dict[str, Path]) -> dict[str, Any]:
        """Share of queries whose nearest neighbour has their class, in percent."""
        splits = get_task("cifar10").load(self.arguments.data / DATA["cifar10"], ("train", "test"))
        count = 16 if self.arguments.tiny else None
        database, queries = (
            (spread(len(splits[split]), count or most), splits[split])
            for split, most in (("train", DATABASE), ("test", QUERIES))
        )
        vectors = {}
        for size, folder in folders.items():
            features = {split: splits.prepare(split, load_processor(str(folder))) for split in ("train", "test")}
            vectors[size] = [
                embed(folder, size, [features[split][index] for index in chosen])
                for split, (chosen, _) in zip(("train", "test"), (database, queries), strict=True)
            ]
        labels = [[split[index]["label"] for index in chosen] for chosen, split in (database, queries)]
        measured: dict[str, Any] = {"equal": {}, "adaptive": {}}
        for size, (own, asked) in vectors.items():
            for way, among in (("equal", own), ("adaptive", vectors["XL"][0])):
                share = one_nearest_neighbour(among, labels[0], asked, labels[1])
                measured[way][size] = round(100 * share, 2)
        return measured


@torch.inference_mode()
def embed(folder: Path, size: str, items: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    """[CLS] of images by a size of an elastic model, or by the model of one size there is."""
    model = load(folder, check=False).model
    with Elastic.of(model).at(size) if is_elastic(model) else nullcontext():
        encoder = snapshot(model).base_model
    batches = [np.stack([item["pixel_values"] for item in items[i : i + 100]]) for i in range(0, len(items), 100)]
    return np.concatenate([encoder(torch.from_numpy(each)).last_hidden_state[:, 0].numpy() for each in batches])


def spread(length: int, count: int) -> list[int]:
    """So many of some items, evenly spaced."""
    return [number * length // count for number in range(min(count, length))]


def main() -> None:
    """Do all parts; results are kept after each run."""
    parser = training_options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    parser.add_argument("--weights", type=Path, default=None, help="DeiT-tiny, by default beside the data")
    add_work_option(parser, NAME)
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    arguments.weights = arguments.weights or arguments.data.parent / "weights" / "deit-tiny-patch16-224"
    torch.set_num_threads(arguments.threads)
    with work_folder(arguments):
        running = Bench(arguments)
        for part in arguments.parts.split(","):
            if part == "deit" and not arguments.weights.is_dir():
                print(f"deit left out: no weights at {arguments.weights}")
                continue
            getattr(running, part)()
            keep(NAME, arguments, running.known)


if __name__ == "__main__":
    main()
