"""Scores of a task over steps, labels and rounds of adapting: the same runs as by hand, each of them once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file

import slimformer
from slimformer.errors import ConfigError, DataError, UsageError
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.methods.adapt.analysis import (
    Course,
    Score,
    gaps_by_rounds,
    picture,
    scores_by_labels,
    scores_by_rounds,
    scores_by_steps,
    weight_distance,
    write_unlabelled,
)
from slimformer.methods.adapt.config import AdaptConfig
from slimformer.models.autoencoder import as_autoencoder
from slimformer.tasks import get_task
from slimformer.tasks.options import TaskOptions
from tests import corpus, runs, zoo

QUICK = {"max_steps": 3, "head_steps": 2, "batch_size": 4, "lr": 1e-3}
TUNING = {"finetune_steps": 3, "finetune_batch_size": 4, "finetune_lr": 1e-3}
METHODS = ["fine-tuning", "further pre-training", "self-distillation"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny BERT and a tiny ViT, each with data of a task."""
    folder = tmp_path_factory.mktemp("scores")
    zoo.build("bert").save_pretrained(folder / "bert")
    corpus.tokenizer().save_pretrained(folder / "bert")
    rows = (corpus.data_folder(folder / "rows") / "train.tsv").read_text().splitlines()[1:]
    (folder / "text.txt").write_text("\n".join(row.split("\t")[0] for row in rows) + "\n")
    runs.viewer(folder / "vit")
    draw = np.random.default_rng(0)
    for split, count in (("train", 24), ("dev", 6)):
        for number in range(count):
            target = folder / "images" / split / f"class-{number % 2}" / f"{number}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 80, (28, 28, 3), dtype=np.uint8) + np.uint8(150 * (number % 2))
            Image.fromarray(pixels).save(target)
    return folder


def of_text(place, **changes) -> AdaptConfig:
    """Settings for a BERT and a task about texts."""
    own = {"model": place / "bert", "corpus": [str(place / "text.txt")], "max_length": 16}
    task = {"then_task": "classification", "data": place / "rows", "finetune_length": 16}
    return AdaptConfig.make({**QUICK, **TUNING, **own, **task, **changes})


def of_images(place, **changes) -> AdaptConfig:
    """Settings for a ViT and a task about images, without a corpus."""
    task = {"then_task": "image-classification", "data": place / "images"}
    return AdaptConfig.make({**QUICK, **TUNING, "model": place / "vit", **task, **changes})


def trained(folder) -> dict[str, int]:
    """Every manifest below a folder with the time it was written at."""
    return {str(file): file.stat().st_mtime_ns for file in folder.rglob("slimformer.json")}


@pytest.mark.slow
def test_rounds_are_those_of_a_run_by_hand(place, tmp_path):
    finding = scores_by_rounds(of_text(place), 2, seeds=(3,), work=tmp_path / "work")
    assert [(score.method, score.value, score.seed) for score in finding.data] == [
        ("fine-tuning", 0, 3),
        ("self-distillation", 0, 3),
        ("self-distillation", 1, 3),
        ("self-distillation", 2, 3),
    ]
    own = {"model": place / "bert", "corpus": [str(place / "text.txt")], "max_length": 16}
    by_hand = slimformer.adapt(**QUICK, **own, rounds=2, seed=3, keep_head=True, out=tmp_path / "hand", quiet=True)
    weights, expected = (
        load_file(folder / "model.safetensors")
        for folder in (tmp_path / "work" / "seed-3" / "model.round-2", tmp_path / "hand")
    )
    assert weights.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in weights.items())
    last = finding.data[-1]
    metrics = by_hand.metrics
    assert last.drift == metrics["drift"]
    assert last.fell == pytest.approx(1 - metrics["reconstruction"] / metrics["reconstruction_before"])
    slimformer.finetune(
        model=tmp_path / "hand", task="classification", data=place / "rows", max_length=16, max_steps=3, batch_size=4,
        lr=1e-3, seed=3, out=tmp_path / "tuned", quiet=True,
    )  # fmt: skip
    measured = evaluate_on_task(tmp_path / "tuned", TaskOptions(data=str(place / "rows")), "dev")["metrics"]
    assert (last.metric, last.score) == next(iter(measured.items()))
    assert "<svg" in finding.figure.svg
    # What is there is not trained again.
    before = trained(tmp_path / "work")
    assert scores_by_rounds(of_text(place), 2, seeds=(3,), work=tmp_path / "work").data == finding.data
    gaps = gaps_by_rounds(of_text(place), 2, seeds=(3,), work=tmp_path / "work")
    assert trained(tmp_path / "work") == before
    assert [gap.rounds for gap in gaps.data] == [None, 0, 1, 2]
    tuned = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "tuned").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "tuned")
    losses = []
    for split in ("train", "dev"):
        rows = [line.rsplit("\t", 1) for line in (place / "rows" / f"{split}.tsv").read_text().splitlines()[1:]]
        inputs = tokenizer([text for text, _ in rows], padding=True, return_tensors="pt")
        labels = torch.tensor([tuned.config.label2id[label] for _, label in rows])
        with torch.no_grad():
            losses.append(float(tuned(**inputs, labels=labels).loss))
    assert gaps.data[-1].train_loss == pytest.approx(losses[0], rel=1e-4)
    assert gaps.data[-1].gap == pytest.approx(losses[1] - losses[0], abs=1e-5)
    assert gaps.data[-1].distance == pytest.approx(weight_distance(place / "bert", tuned).total)
    assert "Fine-tuning alone" in gaps.figure.caption
    with pytest.raises(ConfigError, match="`retrieval`, which has no loss to compare"):
        gaps_by_rounds(of_text(place, then_task="retrieval"), work=tmp_path / "none")


@pytest.mark.slow
def test_a_head_is_warmed_up_once_for_all_numbers_of_steps(place, tmp_path):
    finding = scores_by_steps(of_text(place, rounds=0), (1, 4), work=tmp_path)
    assert [(score.method, score.value) for score in finding.data] == [
        ("fine-tuning", 0),
        ("further pre-training", 1),
        ("further pre-training", 4),
    ]
    assert finding.data[0].fell is None
    assert finding.data[1].drift < finding.data[2].drift
    assert [path.parent.name for path in tmp_path.rglob("model.warmup")] == ["seed-0"]
    alone = slimformer.artifact.read_manifest(tmp_path / "seed-0" / "4-steps" / "model.round-0")
    assert alone.steps[-1].config["steps"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("decoder", [False, True])
def test_labels_and_images_shrink_together(place, tmp_path, decoder):
    base = place / "vit"
    if decoder:  # pre-trained with a decoder of its own, which fine-tuning has no use for
        base = tmp_path / "base"
        as_autoencoder(hf.ViTModel.from_pretrained(place / "vit")).save_pretrained(base)
        (base / "preprocessor_config.json").write_bytes((place / "vit" / "preprocessor_config.json").read_bytes())
    # A decoder that is there is not warmed up.
    config = of_images(place, model=base, **({"head_steps": 200} if decoder else {}))
    finding = scores_by_labels(config, (12, 20), work=tmp_path / "work", best=False)
    assert [(score.method, score.value) for score in finding.data] == [(m, n) for n in (12, 20) for m in METHODS]
    for count in (12, 20):
        folder = tmp_path / "work" / f"{count}-labels"
        images = [np.asarray(Image.open(file)) for file in sorted((folder / "images").iterdir())]
        labelled = get_task("image-classification").load(place / "images", ("train",), limit=count)["train"]
        assert len(images) == count
        assert all(np.array_equal(one, other["image"].open()) for one, other in zip(images, labelled, strict=True))
        assert (folder / "seed-0" / "model.warmup").exists() == (not decoder)
        tuned = slimformer.artifact.read_manifest(folder / "seed-0" / "round-1-tuned").steps[-1]
        assert (tuned.config["limit"], tuned.config["best"]) == (count, False)
    encoder = load_file(tmp_path / "work" / "12-labels" / "seed-0" / "round-1-encoder" / "model.safetensors")
    with_decoder = load_file(tmp_path / "work" / "12-labels" / "seed-0" / "model.round-1" / "model.safetensors")
    assert all(torch.equal(value, with_decoder[f"vit.{name}"]) for name, value in encoder.items())


def test_texts_without_labels(place, tmp_path):
    config = AdaptConfig.make({name: value for name, value in of_text(place).given().items() if name != "corpus"})
    file = write_unlabelled(config, 10, tmp_path)
    labelled = get_task("classification").load(place / "rows", ("train",), limit=10)["train"]
    assert file.read_text().splitlines() == [example["text"] for example in labelled]


def test_the_figure_shows_means_over_seeds():
    scores = [Score("one", 100, seed, "accuracy", score) for seed, score in ((0, 0.5), (1, 0.7))]
    together = picture(scores, "Labels", "labels", "test")
    alone = picture([Score("one", 100, 0, "accuracy", 0.6)], "Labels", "labels", "test")
    assert together.figure.svg == alone.figure.svg
    assert together.figure.caption == "Mean over seeds 0, 1."
    assert together.data == scores


def test_what_cannot_be_is_refused_before_work(place, tmp_path):
    with pytest.raises(ConfigError, match=r"`corpus` is \['.*text.txt'\], and here the task's own examples"):
        scores_by_labels(of_text(place), (10,), work=tmp_path / "work")
    with pytest.raises(DataError, match="24 training examples, and 2,000 are too many"):
        scores_by_labels(of_images(place), (12, 2000), work=tmp_path / "few")
    assert not list((tmp_path / "few").rglob("model.*"))
    with pytest.raises(ConfigError, match=r"`steps` is \[\]"):
        scores_by_steps(of_text(place), (), work=tmp_path / "work")
    with pytest.raises(ConfigError, match=r"`rounds` is \[0\]"):
        scores_by_rounds(of_text(place), 0, work=tmp_path / "work")
    with pytest.raises(ConfigError, match="`epoch`"):
        scores_by_rounds(of_text(place), epoch=3, work=tmp_path / "work")
    with pytest.raises(UsageError, match="`--corpus` must be given"):
        Course(of_images(place), tmp_path / "work")
    assert not (tmp_path / "work").exists()
