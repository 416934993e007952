"""What adapting a ViT to images without labels is worth before fine-tuning, by the number of labels.

This is Fig. 3 of arXiv 2210.02871, where the images that are pre-trained on are the labelled ones, so that both shrink
together. *small*: a masked autoencoder of four blocks, pre-trained from scratch on five classes of fashion-mnist
(shoes, bags and trousers), adapted to the other five (tops and dresses). *deit*: the real DeiT-tiny, its positions
interpolated to 112 pixels, with a new decoder, on five animals of cifar10-jpg. Each is fine-tuned alike with 100, 500
and 2,500 labels, and its accuracy measured on test:

- *fine-tuning* alone;
- *further pre-training* first, and twice as long for one number of labels;
- *self-distillation*, one round of as many steps, from the base again, taught by the further pre-trained model.

A run counts as pre-training only if the loss on held-out images fell by a tenth; `fell` says by how much. The small ViT
has three seeds, which see the same images; DeiT has one, and so has what is trained twice as long. Results are kept
after every piece, what is there is not done again, and the figures are `adapt_vision_MODEL.svg`. A run that is killed
goes on from its checkpoint in `--work`. About 2 hours of one core; `--full` has three seeds of everything and four
times the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from harness import RESULTS, training_options
from harness.pieces import Pieces, add_piece_options
from harness.vision import write_processor, write_smaller
from slimformer import adapt
from slimformer.methods.adapt.analysis import Course, Score, picture, write_unlabelled
from slimformer.methods.adapt.config import AdaptConfig
from slimformer.models.autoencoder import as_autoencoder
from slimformer.tasks import get_task
from slimformer.tasks.splits import sample

if TYPE_CHECKING:
    import argparse

NAME = "adapt_vision"
#: Part by which the loss on held-out images has to fall.
FALL = 0.1
LABELS = (100, 500, 2500)
#: Rounds of each method; None for no pre-training.
METHODS = {"fine-tuning": None, "further pre-training": 0, "self-distillation": 1}
#: Further pre-training with twice the steps, and with how many labels.
TWICE, TWICE_LABELS = "further pre-training, twice", 500
#: Images to pre-train the small ViT on, and of dev.
BASE_IMAGES, DEV_IMAGES = 10_000, 200
SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "patch_size": 4,
    "image_size": 28,
}
DEIT_PIXELS = 112


@dataclass(frozen=True)
class Work:
    """A model's data, and how long it is trained.

    Args:
        task: The task whose classes are divided.
        folder: Where its data lie.
        target: The classes that are adapted to.
        base: Steps of pre-training from scratch; none for a model that is pre-trained.
        head: Steps of a new decoder; None where the base brings one.
        steps: Steps of pre-training on the target, and of each round.
        batch: Images of such a step.
        lr: Its learning rate.
        tuning: Steps of fine-tuning, of 32 images each.
        tuning_lr: Its learning rate.
        seeds: Seeds of everything but the base.
    """

    task: str
    folder: str
    target: tuple[str, ...]
    base: int
    head: int | None
    steps: int
    batch: int
    lr: float
    tuning: int
    tuning_lr: float
    seeds: int


MODELS = {
    "small": Work(
        "fashion-mnist",
        "fashion-mnist",
        ("T-shirt/top", "Pullover", "Dress", "Coat", "Shirt"),
        base=2500,
        head=None,
        steps=300,
        batch=64,
        lr=5e-4,
        tuning=400,
        tuning_lr=1e-3,
        seeds=3,
    ),
    "deit": Work(
        "cifar10",
        "cifar10-jpg",
        ("bird", "cat", "deer", "dog", "frog"),
        base=0,
        head=150,
        steps=200,
        batch=32,
        lr=1.5e-4,
        tuning=100,
        tuning_lr=2e-4,
        seeds=1,
    ),
}


def longer(work: Work) -> Work:
    """Three seeds and four times the steps."""
    head = None if work.head is None else 4 * work.head
    return replace(work, head=head, steps=4 * work.steps, tuning=4 * work.tuning, seeds=3)


def shortest(work: Work) -> Work:
    """Two steps of everything."""
    return replace(work, base=min(2, work.base), head=work.head and 2, steps=2, batch=4, tuning=2, seeds=1)


class Table:
    """All that is done with one model."""

    def __init__(self, model: str, work: Work, pieces: Pieces, arguments: argparse.Namespace) -> None:
        self.model, self.work, self.pieces, self.arguments = model, work, pieces, arguments
        self.folder: Path = arguments.work / model
        self.labels = (20,) if arguments.tiny else LABELS
        others = {piece["steps"] for piece in pieces.done.values() if piece.get("model") == model} - {work.steps}
        if others:
            raise SystemExit(f"{NAME}.json has runs of {others.pop()} steps; move it and {self.folder} away first")

    def everything(self, seed: int) -> None:
        """All methods with one seed."""
        if self.work.base:
            self.pieces.do(f"{self.model}: base", self.pretrain)
        for labels in self.labels:
            twice = labels == TWICE_LABELS and (seed == 0 or self.arguments.full)
            for method in (*METHODS, *([TWICE] if twice else [])):
                self.pieces.do(
                    f"{self.model}: {method}, {labels} labels, seed {seed}",
                    lambda labels=labels, method=method: self.measure(method, labels, seed),
                )

    def measure(self, method: str, labels: int, seed: int) -> dict[str, Any]:
        """Fine-tune what a method starts from, and measure it on test."""
        course = self.course(labels, seed)
        if method == TWICE:
            course = course.with_steps(2 * self.work.steps, course.folder / "twice")
        score = course.score(METHODS.get(method, 0), labels)
        what = {"model": self.model, "method": method, "labels": labels, "seed": seed, "steps": self.work.steps}
        result = {**what, "test": round(100 * score.score, 2)}
        if score.fell is None or score.drift is None:
            return result
        return {**result, "fell": round(score.fell, 3), "counts": score.fell >= FALL, "drift": round(score.drift, 4)}

    def course(self, labels: int, seed: int) -> Course:
        """From the base to the task, with so many images."""
        work, images = self.work, self.images()
        config = AdaptConfig(
            model=str(self.base()),
            then_task="image-classification",
            data=str(images / "target"),
            max_steps=work.steps,
            **({} if work.head is None else {"head_steps": work.head}),
            batch_size=work.batch,
            lr=work.lr,
            save_every=100,
            finetune_steps=work.tuning,
            finetune_batch_size=32,
            finetune_lr=work.tuning_lr,
            seed=seed,
            threads=self.arguments.threads,
            bf16=self.arguments.bf16,
        )
        corpus = write_unlabelled(config, labels, self.folder / f"{labels}-labels")
        config = AdaptConfig.make({**config.given(), "corpus": [str(corpus)]})
        tuning = {"limit": labels, "best": False, "eval_every": work.tuning}
        return Course(config, corpus.parent / f"seed-{seed}", "test", tuning)

    def base(self) -> Path:
        """What is adapted: pre-trained from scratch, again if it was lost, or DeiT."""
        folder = self.folder / "base"
        if not (folder / "preprocessor_config.json").exists():
            if self.work.base:
                self.pretrain()
            else:
                write_smaller(self.arguments.weights, folder, DEIT_PIXELS)
        return folder

    def pretrain(self) -> dict[str, Any]:
        """Pre-train new weights on the other half of the classes."""
        result = adapt(
            model=str(self.new()),
            corpus=[str(self.images() / "base")],
            out=str(self.folder / "base"),
            rounds=0,
            max_steps=self.work.base,
            batch_size=self.work.batch,
            lr=1e-3,
            save_every=250,
            seed=self.arguments.seed,
            threads=self.arguments.threads,
            bf16=self.arguments.bf16,
            resume=True,
            quiet=True,
        )
        before, after = result.metrics["reconstruction_before"], result.metrics["reconstruction"]
        return {"before": round(before, 4), "after": round(after, 4), "fell": round(1 - after / before, 3)}

    def new(self) -> Path:
        """A masked autoencoder with new weights; the positions of its patches are fixed waves."""
        folder = self.folder / "new"
        if not (folder / "preprocessor_config.json").exists():
            torch.manual_seed(self.arguments.seed)
            autoencoder = as_autoencoder(transformers.ViTModel(transformers.ViTConfig(**SMALL)))
            autoencoder.vit.embeddings.position_embeddings.data.copy_(autoencoder.decoder.decoder_pos_embed)
            autoencoder.save_pretrained(folder)
            write_processor(folder, SMALL["image_size"])
        return folder

    def images(self) -> Path:
        """The images of both halves of the classes, as folders."""
        folder = self.folder / "images"
        if not folder.exists():
            stage = folder.with_name("images.unfinished")
            self.write_images(stage)
            stage.rename(folder)
        return folder

    def write_images(self, folder: Path) -> None:
        """Write `base`, without labels, and `target` with a folder for each split and class."""
        splits = ("train", "dev", "test")
        data = get_task(self.work.task).load(self.arguments.data / self.work.folder, splits)
        assert data.labels is not None
        most = {"base": BASE_IMAGES, "train": max(LABELS), "dev": DEV_IMAGES, "test": None}
        if self.arguments.tiny:
            most = dict.fromkeys(most, 40)
        for split in splits:
            chosen = [example for example in data[split] if data.labels[example["label"]] in self.work.target]
            for number in sample(len(chosen), most[split]):
                name = data.labels[chosen[number]["label"]].replace("/", "-")
                write_image(chosen[number], folder / "target" / split / name / f"{number:06}.png")
        others = [example for example in data["train"] if data.labels[example["label"]] not in self.work.target]
        for number in sample(len(others), most["base"]) if self.work.base else ():
            write_image(others[number], folder / "base" / f"{number:06}.png")


def write_image(example: dict[str, Any], file: Path) -> None:
    """Write the image of an example."""
    file.parent.mkdir(parents=True, exist_ok=True)
    example["image"].open().save(file)


def measured(done: dict[str, Any], model: str) -> list[Score]:
    """The scores of a model among the pieces."""
    return [
        Score(piece["method"], piece["labels"], piece["seed"], "accuracy", piece["test"])
        for piece in done.values()
        if piece.get("model") == model
    ]


def summary(done: dict[str, Any]) -> dict[str, Any]:
    """Mean and spread over seeds of each model, method and number of labels, and which pre-training does not count."""
    table: dict[str, Any] = {}
    for model in MODELS:
        for score in measured(done, model):
            row = table.setdefault(model, {}).setdefault(score.method, {})
            row.setdefault(str(score.value), []).append(score.score)
    for rows in table.values():
        for row in rows.values():
            for labels, values in row.items():
                mean, spread = (round(float(of(values)), 2) for of in (np.mean, np.std))
                row[labels] = {"mean": mean, "spread": spread, "seeds": len(values)}
    idle = [name for name, piece in done.items() if not piece.get("counts", True)]
    hours = sum(piece["cpu_seconds"] for piece in done.values()) / 3600
    return {"accuracy": table, "does_not_count": idle, "cpu_hours": round(hours, 2)}


def draw(pieces: Pieces, arguments: argparse.Namespace) -> None:
    """Draw Fig. 3 of each model that something is known of."""
    for model in MODELS:
        scores = [score for score in measured(pieces.done, model) if score.method != TWICE]
        if scores:
            svg = picture(scores, "Number of labels", "labels", "test").figure.svg
            if not arguments.tiny:
                (RESULTS / f"{NAME}_{model}.svg").write_text(svg)


def main() -> None:
    """Do whatever is not done yet."""
    parser = training_options(__doc__)
    add_piece_options(parser, NAME)
    parser.add_argument("--weights", type=Path, default=None, help="DeiT-tiny, by default beside the data")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--full", action="store_true", help="three seeds of everything, four times the steps")
    arguments = parser.parse_args()
    if not (arguments.data / MODELS["small"].folder).is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    arguments.weights = arguments.weights or arguments.data.parent / "weights" / "deit-tiny-patch16-224"
    pieces = Pieces(NAME, arguments, summary)
    pieces.run(lambda: do_all(pieces, arguments))
    draw(pieces, arguments)


def do_all(pieces: Pieces, arguments: argparse.Namespace) -> None:
    """All models, seed by seed, so that every table is there early."""
    tables = []
    for model in arguments.models.split(","):
        if model == "deit" and not arguments.weights.is_dir():
            print(f"deit left out: no weights at {arguments.weights}")
            continue
        work = MODELS[model]
        work = shortest(work) if arguments.tiny else longer(work) if arguments.full else work
        tables.append(Table(model, work, pieces, arguments))
    for seed in range(max((table.work.seeds for table in tables), default=0)):
        for table in tables:
            if seed < table.work.seeds:
                table.everything(seed)


if __name__ == "__main__":
    main()
