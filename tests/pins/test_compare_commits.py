"""What the comparison of two commits calls a difference."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.pins.compare_commits import commands_of, compared, digests, table
from tests.pins.materials import Materials
from tests.test_old_artifacts import ARTIFACTS

SAME = {"weights": "same", "files": "same", "manifest": "same"}


@pytest.fixture
def pair(tmp_path):
    """Two copies of an artifact."""
    return [shutil.copytree(ARTIFACTS / "rounded", tmp_path / name) for name in ("old", "new")]


def verdict(pair):
    return compared(*(digests(folder) for folder in pair))


def edit(folder, change):
    path = folder / "slimformer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_copies_are_the_same(pair):
    assert verdict(pair) == SAME


def test_one_bit_of_one_tensor(pair):
    path = pair[1] / "model.safetensors"
    weights = load_file(path)
    name = next(name for name, tensor in weights.items() if tensor.dtype is torch.uint8)
    weights[name].view(-1)[0] ^= 1
    save_file(weights, path, metadata={"format": "pt"})
    assert verdict(pair) == {**SAME, "weights": f"1 differ, such as model.safetensors: {name}"}


def test_a_file_that_changed_or_is_gone(pair):
    (pair[1] / "tokenizer.json").unlink()
    (pair[1] / "README.md").write_text("other words")
    assert verdict(pair) == {**SAME, "files": "1 differ, such as tokenizer.json"}


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["steps"][0].update(duration_s=9.0, command="slimformer finetune", versions={}),
        lambda content: content["steps"][1]["config"].update(model="elsewhere", new_setting=3),
        lambda content: content["steps"][1]["config"].pop("beta"),
        lambda content: content.update(format=2, sha256="0" * 64),
    ],
)
def test_what_passes_is_no_difference(pair, change):
    edit(pair[1], change)
    assert verdict(pair) == SAME


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda content: content["steps"][1]["config"].update(beta=0.4), "steps.1.config.beta"),
        (lambda content: content["metrics"]["classification/dev"].update(accuracy=1.0), "metrics.classification/dev"),
        (lambda content: content["model"].update(packed=["binary"]), "model.packed"),
        (lambda content: content["task"]["labels"].reverse(), "task.labels"),
    ],
)
def test_what_stays_is_a_difference(pair, change, path):
    edit(pair[1], change)
    assert path in verdict(pair)["manifest"]


def test_an_artifact_that_was_not_written(pair):
    row = compared(digests(pair[0]), {})
    assert row == dict.fromkeys(SAME, "missing in new")
    assert "0 of 1 artifacts are the same" in table({"rounded": row})


def test_every_pinned_case_is_a_command(tmp_path):
    materials = Materials(tmp_path)
    commands = commands_of(materials, "mask/structured")
    assert list(commands) == ["mask/structured", "mask/structured-neurons"]
    words = commands["mask/structured"]
    assert words[:3] == ["mask", "--model", "materials/bert"]
    assert "--anneal" in words
    assert (tmp_path / "bert" / "config.json").is_file()
