"""`--no-check`, `--base` and `--cast-base`: one spelling and one meaning in every command that loads a model."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers as hf

from slimformer.artifact import Step, save
from tests import corpus, runs
from tests.artifact.forging import edit, resum


def commands(folder, data, out):
    return {
        "predict": ["predict", folder, "good"],
        "evaluate": ["evaluate", folder, "--data", data, "--quiet"],
        "compare": ["compare", folder, "--data", data, "--timed", "2"],
        "bench": ["bench", folder, "--seconds", "0", "--length", "8"],
        "export": ["export", folder, "--out", out / "model.onnx"],
        "merge": ["merge", folder, "--out", out / "plain"],
    }


@pytest.fixture
def otherwise(artifact, tmp_path):
    """An artifact that does not answer as recorded, as under another version of Transformers; its sums agree."""
    folder = shutil.copytree(artifact, tmp_path / "artifact")
    edit(folder / "config.json", layer_norm_eps=0.5)
    resum(folder)
    return folder


EXPORT = pytest.param("export", marks=pytest.mark.slow)


@pytest.mark.parametrize("command", ["predict", "evaluate", "compare", "bench", EXPORT])
def test_without_checking_answers_are_not_compared(otherwise, data, tmp_path, command):
    words = commands(otherwise, data, tmp_path)[command]
    runs.run(*words).refused("does not give the outputs recorded at saving")
    done = runs.run(*words, "--no-check")
    assert done.code == 0, done.err


@pytest.mark.parametrize("command", ["predict", "evaluate", "compare", "bench", "export"])
def test_without_checking_sums_are_compared_all_the_same(artifact, data, tmp_path, command):
    folder = shutil.copytree(artifact, tmp_path / "artifact")
    (folder / "README.md").write_text("mine")
    runs.run(*commands(folder, data, tmp_path)[command], "--no-check").refused("`README.md` of artifact")


@pytest.fixture(scope="module")
def mask(tmp_path_factory):
    """A mask, and its base cast to 16 bits elsewhere."""
    folder = tmp_path_factory.mktemp("mask")
    corpus.model_folder(folder / "base")
    model = hf.BertForSequenceClassification.from_pretrained(folder / "base", num_labels=2).eval()
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight.mul_(torch.rand(32, 64) > 0.1)
    model.config.id2label = {0: "no", 1: "yes"}
    task = {"name": "classification", "kind": "classification", "labels": ["no", "yes"]}
    described = {"base": folder / "base", "processor": corpus.tokenizer(), "step": Step(method="mask"), "task": task}
    save(folder / "mask", model, **described, storage="mask")
    hf.AutoModel.from_pretrained(folder / "base", dtype=torch.bfloat16).save_pretrained(folder / "cast")
    corpus.tokenizer().save_pretrained(folder / "cast")
    return folder


@pytest.mark.parametrize("command", ["predict", "evaluate", "bench", EXPORT, "merge", "verify"])
def test_a_cast_base_is_taken_on_request(mask, data, tmp_path, command):
    words = {**commands(mask / "mask", data, tmp_path), "verify": ["verify", mask / "mask"]}[command]
    words = [*words, "--base", mask / "cast"]
    runs.run(*words).refused("cast to bfloat16")
    done = runs.run(*words, "--cast-base")
    assert done.code == 0, done.err
