"""`slimformer quantize` as typed."""

from __future__ import annotations

import re

import pytest

import slimformer
from slimformer.artifact import read_manifest
from slimformer.methods.quantize import QuantizeConfig
from tests import runs


def quantize(model, data, out, *more):
    common = ["--model", model, "--task", "classification", "--data", data, "--out", out]
    quick = ["--max-steps", 2, "--batch-size", 8, "--lr", 1e-3]
    return runs.run("quantize", *common, *quick, *more)


@pytest.fixture(scope="module")
def packed(shelf, artifact, data):
    """A ternary model; tests do not change it."""
    done = quantize(artifact, data, shelf / "packed", "--weights", "ternary", "--kd", "map", "--json")
    return shelf / "packed", done


def test_json_is_all_there_is_on_standard_output(packed, artifact):
    folder, done = packed
    assert set(done.json["metrics"]) == {"accuracy", "f1_macro", "f1_micro", "matthews"}
    assert (done.json["steps"], done.json["out"]) == (2, str(folder))
    chain = read_manifest(folder).steps
    assert [step.method for step in chain] == ["finetune", "quantize"]
    assert chain[-1].config["kd"] == "map"
    assert chain[-1].config["weights"] == "ternary"
    assert chain[-1].base.fingerprint == read_manifest(artifact).model.fingerprint


def test_what_was_typed_is_what_python_does(packed, artifact, data, tmp_path):
    settings = {"task": "classification", "max_steps": 2, "batch_size": 8, "lr": 1e-3, "kd": "map", "quiet": True}
    slimformer.quantize(model=artifact, data=data, weights="ternary", out=tmp_path / "out", **settings)
    files = [next(folder.glob("*.safetensors")) for folder in (tmp_path / "out", packed[0])]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_result_is_measured_checked_and_asked(packed, data):
    folder, done = packed
    assert runs.run("evaluate", folder, "--data", data, "--json").json["metrics"] == done.json["metrics"]
    assert runs.run("verify", folder).code == 0
    (cost,) = runs.run("bench", folder, "--length", 8, "--seconds", 0, "--json").json["models"]
    assert cost["bytes"] == sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert runs.run("predict", folder, "the film was good").out.split()[0] in ("no", "yes")


def test_unpacking(packed, data, tmp_path):
    folder, _ = packed
    done = runs.run("unpack", folder, "--out", tmp_path / "plain", "--json").json
    assert done["bytes"] == (tmp_path / "plain" / "model.safetensors").stat().st_size
    assert done["activations"]["bits"] == 8
    assert 0 < done["moved"] < 0.5
    assert runs.run("evaluate", tmp_path / "plain", "--data", data).code == 0
    runs.run("unpack", folder, "--out", tmp_path / "plain").refused("exists; choose another `--out`")
    lines = runs.run("unpack", folder, "--out", tmp_path / "plain", "--overwrite", "--store", "half").out.splitlines()
    assert lines[0].startswith(f"{folder} unpacked: BertForSequenceClassification, ")
    assert lines[1].startswith("activations are not rounded any more: answers moved by ")
    assert lines[2].startswith("weights stored as float16: answers moved by ")


@pytest.mark.slow
def test_people_get_a_few_lines_and_notes_of_what_came_first(base, data, tmp_path):
    done = quantize(base, data, tmp_path / "out", "--weights", "4", "--quiet")
    assert done.code == 0
    assert re.fullmatch(r"dev: accuracy 0\.\d{4}, .*\n2 steps in \d+ s.*\nsaved in .*out\n", done.out)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.finetuned"}
    quantize(base, data, tmp_path / "out", "--weights", "4", "--quiet").refused("exists; choose another `--out`")
    again = quantize(base, data, tmp_path / "out", "--weights", "4", "--quiet", "--resume")
    assert again.out.splitlines()[0] == done.out.splitlines()[0]


@pytest.mark.parametrize(
    ("flags", "said", "code"),
    [
        (["--weights", "int5"], "there is no format `int5`", 2),
        (["--granularity", "group"], "groups, and only they, need a size", 2),
        (["--kd", "none", "--stages", "2"], "`stages` is 2, and without a teacher there is only one", 2),
        (["--terms", "logits:1", "--beta", "0.1"], "`terms` and `beta` both say what is learned", 2),
        (["--distil-layers", "top"], "give `all`, numbers such as `0,2,5`, or `every-2`", 2),
        (["--lr-grid", "1e-4"], "give from 2 to 32 learning rates", 2),
    ],
)
def test_bad_settings(artifact, data, tmp_path, flags, said, code):
    done = quantize(artifact, data, tmp_path / "out", *flags)
    assert done.code in (1, code)
    assert done.err.startswith("error: ")
    assert said in done.err.replace("--", "")
    assert not runs.listing(tmp_path)


def test_every_setting_is_a_flag():
    done = runs.run("quantize", "--help")
    assert done.code == 0
    flags = set(re.findall(r"--[a-z][a-z0-9-]*", done.out))
    assert {f"--{name.replace('_', '-')}" for name in QuantizeConfig.model_fields} <= flags
