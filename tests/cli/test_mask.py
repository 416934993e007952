"""`slimformer mask` and `slimformer merge` as typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
import transformers as hf

from slimformer.artifact import read_manifest
from slimformer.methods.mask import MaskConfig
from tests import runs

QUICK = ["--max-steps", 2, "--batch-size", 8, "--lr", 0.05]


def mask(base, data, out, *more):
    common = ["--model", base, "--task", "classification", "--data", data, "--out", out]
    return runs.run("mask", *common, *QUICK, *more)


@pytest.fixture(scope="module")
def masked(shelf, base, data):
    """A mask on block 1; tests do not change it."""
    assert mask(base, data, shelf / "masked", "--blocks", "1-", "--quiet").code == 0
    return shelf / "masked"


def test_json_is_all_there_is_on_standard_output(base, data, tmp_path):
    done = mask(base, data, tmp_path / "out", "--blocks", "1-", "--initial-sparsity", 0.1, "--json")
    assert set(done.json["metrics"]) == {"accuracy", "f1_macro", "f1_micro", "matthews"}
    assert done.json["steps"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert read_manifest(tmp_path / "out").steps[0].config["initial_sparsity"] == 0.1


def test_people_get_a_few_lines(base, data, tmp_path):
    done = mask(base, data, tmp_path / "out", "--top-down", 1, "--quiet")
    assert re.fullmatch(r"dev: accuracy 0\.\d{4}, .*\n2 steps in \d+ s.*\nsaved in .*out\n", done.out)


def test_everything_else_works_on_a_mask(masked, data):
    measured = runs.run("evaluate", masked, "--data", data, "--json").json
    assert measured["metrics"] == read_manifest(masked).metrics["classification/dev"]
    assert runs.run("verify", masked).code == 0
    (cost,) = runs.run("bench", masked, "--length", 8, "--seconds", 0, "--json").json["models"]
    assert cost["bytes"] == (masked / "mask.safetensors").stat().st_size
    assert runs.run("inspect", masked).code == 0


@pytest.mark.slow
def test_a_base_that_has_moved_is_named(base, data, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    assert mask(tmp_path / "base", data, tmp_path / "out" / "masked", "--blocks", "1-", "--quiet").code == 0
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    commands = {
        "evaluate": ["--data", data],
        "compare": ["--data", data, "--timed", 2],
        "verify": [],
        "bench": ["--length", 8, "--seconds", 0],
    }
    for command, more in commands.items():
        runs.run(command, tmp_path / "out" / "masked", *more).refused("give its folder with `--base`")
        assert runs.run(command, tmp_path / "out" / "masked", *more, "--base", tmp_path / "elsewhere").code == 0


def test_merging(masked, data, tmp_path):
    done = runs.run("merge", masked, "--out", tmp_path / "plain", "--json").json
    assert done["architecture"] == "BertForSequenceClassification"
    assert done["bytes"] == (tmp_path / "plain" / "model.safetensors").stat().st_size
    assert hf.pipeline("text-classification", str(tmp_path / "plain"))("a good film")[0]["label"] in ("no", "yes")
    measured = runs.run("evaluate", tmp_path / "plain", "--data", data, "--json").json
    assert measured["metrics"] == read_manifest(masked).metrics["classification/dev"]
    runs.run("merge", masked, "--out", tmp_path / "plain").refused("exists; choose another `--out`")
    done = runs.run("merge", masked, "--out", tmp_path / "plain", "--overwrite")
    assert done.out.startswith(f"{masked} merged: BertForSequenceClassification, ")


def test_the_base_can_be_given(masked, base, tmp_path):
    shutil.copytree(base, tmp_path / "copy")
    assert runs.run("merge", masked, "--out", tmp_path / "plain", "--base", tmp_path / "copy").code == 0
    other = runs.headed(tmp_path / "other", hf.BertModel)
    done = runs.run("merge", masked, "--out", tmp_path / "none", "--base", other)
    done.refused(f"`{other}` is not the base of the mask in `{masked}`", "as it was with `--base`")
    done = runs.run("merge", masked, "--out", tmp_path / "none", "--base", tmp_path / "nowhere")
    done.refused("the base `base` of the mask in", "is not at")
    assert not (tmp_path / "none").exists()


def test_a_checkpoint_is_not_merged(artifact, tmp_path):
    runs.run("merge", artifact, "--out", tmp_path / "plain").refused("is no mask; it is a checkpoint already")


def test_a_mask_is_no_base(masked, data, tmp_path):
    done = runs.finetune(masked, "classification", data, tmp_path / "out")
    done.refused("is a mask on a base and no checkpoint; merge the two first: slimformer merge")


@pytest.mark.parametrize(
    ("flags", "said", "code"),
    [
        (["--blocks", "two"], "`--blocks` is `two`: give blocks counted from 0 to 9999 as `2-`, `1-5` or `0,3,5`", 2),
        (["--blocks", "5-"], "`--blocks` is `5-`, but the model has 2 blocks, 0 to 1", 1),
        (["--matrices", "q,z"], "there is no matrix `z`", 2),
        (["--initial-sparsity", "1.5"], "`--initial-sparsity` is `1.5`", 2),
        (["--sparsity", "0.5", "--blocks", "1-", "--anneal"], "`--anneal` needs `--structured` and `--sparsity`", 2),
        (["--top-down", "1", "--bottom-up", "1"], "both say which blocks to mask; give one of them", 2),
    ],
)
def test_bad_settings(base, data, tmp_path, flags, said, code):
    mask(base, data, tmp_path / "out", *flags).refused(said, code=code)
    assert not runs.listing(tmp_path)


@pytest.mark.slow
def test_every_setting_is_described_in_the_help():
    done = subprocess.run(
        [sys.executable, "-c", "from slimformer.cli import main; main()", "mask", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "300"},
    )
    assert done.returncode == 0
    words = " ".join(done.stdout.split()).replace("`", "")
    for name, field in MaskConfig.model_fields.items():
        assert f"--{name.replace('_', '-')}" in words
        assert field.description.replace("`", "") in words, name


def test_a_mask_does_not_take_the_place_of_its_base(base, data, tmp_path):
    runs.finetune(base, "classification", data, tmp_path / "tuned", "--max-steps", 1)
    before = runs.listing(tmp_path / "tuned")
    mask(tmp_path / "tuned", data, tmp_path / "tuned", "--overwrite").refused("which `--model` names", "choose another")
    assert runs.listing(tmp_path / "tuned") == before
