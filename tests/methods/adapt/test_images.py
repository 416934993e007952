"""Further pre-training of ViTs: a decoder that comes and goes, hidden patches, and a plain ViT in the end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file

import slimformer
from slimformer import Anatomy, artifact
from slimformer.errors import ConfigError, DataError
from tests import runs

QUICK = {"max_steps": 3, "head_steps": 2, "batch_size": 4, "lr": 1e-3, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny ViT, images of two classes, and a few too few."""
    folder = tmp_path_factory.mktemp("adapt")
    runs.viewer(folder / "base")
    draw = np.random.default_rng(0)
    for split, count in (("train", 20), ("dev", 4)):
        for number in range(count):
            label = number % 2
            target = folder / "images" / split / f"class-{label}" / f"{number}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 80, (28, 28, 3), dtype=np.uint8) + np.uint8(150 * label)
            Image.fromarray(pixels).save(target)
            if number < 3 and split == "train":
                few = folder / "few" / f"{number}.png"
                few.parent.mkdir(exist_ok=True)
                Image.fromarray(pixels).save(few)
    return folder


def adapt(place, **changes):
    return slimformer.adapt(
        **{"model": place / "base", "corpus": [str(place / "images" / "train")], **QUICK, **changes}
    )


@pytest.mark.slow
def test_a_plain_vit_comes_out_that_can_be_fine_tuned(place, tmp_path):
    result = adapt(place, out=tmp_path / "out", max_steps=30)
    assert type(result.model) is hf.ViTModel
    assert result.metrics["reconstruction"] < result.metrics["reconstruction_before"]
    assert artifact.verify(tmp_path / "out").max_difference == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (place / "base", tmp_path / "out"))
    assert before.keys() == after.keys()
    assert not torch.equal(before["embeddings.cls_token"], after["embeddings.cls_token"])
    warmed = load_file(tmp_path / "out.warmup" / "model.safetensors")
    base = {name: value for name, value in before.items() if not name.startswith("pooler")}
    kept = {name.removeprefix("vit."): value for name, value in warmed.items() if name.startswith("vit.")}
    assert all(torch.equal(value, kept[name]) for name, value in base.items() if name in kept)
    assert len(base.keys() & kept.keys()) >= len(base) - 1
    done = runs.run(
        "finetune", "--model", tmp_path / "out", "--task", "image-classification", "--data", place / "images",
        "--max-steps", 1, "--batch-size", 4, "--out", tmp_path / "tuned", "--json", "--quiet",
    )  # fmt: skip
    assert done.json["steps"] == 1
    assert [step.method for step in artifact.read_manifest(tmp_path / "tuned").steps] == ["adapt", "finetune"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, "features"),
        ({"positions": "first", "reduction": "sum"}, "features"),
        ({"match": "predictions"}, "predictions"),
        ({"mask_share": 0.5, "normalize": True}, "features"),
    ],
)
def test_what_can_be_learned(place, changes, part):
    result = adapt(place, **changes, log_every=1)
    assert result.losses.keys() == {"loss", "patches", part}
    assert result.losses["loss"] == pytest.approx(result.losses["patches"] + result.losses[part], rel=1e-4)


@pytest.mark.slow
def test_the_encoder_sees_a_quarter_and_the_teacher_all(place, tmp_path):
    from slimformer.methods.adapt.config import AdaptConfig
    from slimformer.methods.adapt.method import Adapt
    from slimformer.methods.method import RunOptions
    from slimformer.methods.run import run_phase

    settings = {**QUICK, "model": str(place / "base"), "corpus": [str(place / "images" / "train")]}
    del settings["quiet"]
    state = Adapt(AdaptConfig.make({**settings, "out": str(tmp_path / "out")}), RunOptions(quiet=True))
    for phase in state.phases():
        run_phase(phase, state.options)
    state.start()
    seen = {"student": set(), "teacher": set()}
    for name, model in (("student", state.model), ("teacher", state.teacher_model)):
        block = Anatomy.of(model).blocks[0].module
        block.register_forward_pre_hook(lambda _, args, name=name: seen[name].add(args[0].shape[1]))
    state.train(tmp_path / "work")
    assert seen["student"] == {1 + 4, 1 + 16}  # a quarter of 16 patches, and all of them to be compared
    assert seen["teacher"] == {1 + 16}


def test_what_cannot_be_is_refused_before_work(place, tmp_path):
    with pytest.raises(ConfigError, match="`max_length` is 16, which is for text"):
        adapt(place, max_length=16, out=tmp_path / "out")
    with pytest.raises(DataError, match="3 images, too few to hold some out"):
        adapt(place, corpus=[str(place / "few")], out=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"`mask_share` is 0\.99"):
        adapt(place, mask_share=0.99, rounds=0, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())
