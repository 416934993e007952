"""`--store` as typed: every method that leaves a plain checkpoint, and every command on what it left."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import slimformer
from slimformer.artifact import read_manifest
from slimformer.bank import MaskBank
from tests import runs


def types(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no mapping)


@pytest.fixture(scope="module")
def half(shelf, base, data):
    """An artifact in float16; tests do not change it."""
    done = runs.finetune(base, "classification", data, shelf / "half", "--store", "half")
    assert "note: weights stored as float16: answers moved by 0." in done.err
    assert ", accuracy +0.0000" in done.err
    return shelf / "half"


def test_it_is_half_the_file_of_the_same_training(half, artifact):
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (half, artifact)]
    assert sizes[0] < 0.6 * sizes[1]
    whole, short = (load_file(folder / "model.safetensors") for folder in (artifact, half))
    assert all(torch.equal(tensor.half(), short[name]) for name, tensor in whole.items())
    model, step = read_manifest(half).model, read_manifest(half).steps[-1]
    assert model.rounded.metrics == dict.fromkeys(("accuracy", "f1_macro", "f1_micro", "matthews"), 0.0)
    assert step.config["store"] == "half"


def test_every_command_works_on_it(half, data, tmp_path):
    measured = runs.run("evaluate", half, "--data", data, "--json").json
    assert measured["metrics"] == read_manifest(half).metrics["classification/dev"]
    assert runs.run("verify", half).code == 0
    assert runs.run("predict", half, "a good film").code == 0
    (cost,) = runs.run("bench", half, "--length", 8, "--seconds", 0, "--json").json["models"]
    assert cost["bytes"] == (half / "model.safetensors").stat().st_size
    assert runs.run("inspect", half, "--json").json["stored"] == "float16"
    assert "float32 in memory, float16 in the file" in " ".join(runs.run("inspect", half).out.split())


def test_a_mask_and_a_bank_stand_on_it(half, data, tmp_path):
    common = ["--task", "classification", "--data", data, "--max-steps", 2, "--batch-size", 8, "--quiet"]
    done = runs.run("mask", "--model", half, "--out", tmp_path / "bits", "--blocks", "1-", *common)
    assert done.code == 0, done.err
    assert runs.run("verify", tmp_path / "bits").code == 0
    bank = MaskBank(half)
    bank.add("task", tmp_path / "bits")
    assert len(bank.predict({"task": ["a good film"]})["task"]) == 1
    merged = runs.run("merge", tmp_path / "bits", "--out", tmp_path / "plain", "--store", "half", "--json").json
    assert merged["rounded"]["dtype"] == "float16"
    assert types(tmp_path / "plain") == {"F16"}
    done = runs.run("merge", tmp_path / "bits", "--out", tmp_path / "plain", "--overwrite")
    assert types(tmp_path / "plain") == {"F32"}
    assert "stored as" not in done.out


@pytest.mark.parametrize("method", ["quantize", "finetune", "elastic"])
def test_methods_start_from_it(method, half, data, tmp_path):
    common = ["--task", "classification", "--data", data, "--max-steps", 2, "--batch-size", 8, "--quiet"]
    done = runs.run(method, "--model", half, "--out", tmp_path / "out", *common)
    assert done.code == 0, done.err
    manifest = read_manifest(tmp_path / "out")
    assert [step.method for step in manifest.steps] == ["finetune", method]
    assert manifest.base.fingerprint == read_manifest(half).model.fingerprint
    assert manifest.model.rounded is None


def test_distill_and_adapt(base, shelf, data, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"the film number {number} was good" for number in range(40)))
    quick = ["--corpus", text, "--max-steps", 2, "--batch-size", 4, "--store", "half", "--quiet", "--json"]
    small = ["--layers", 1, "--relation-heads", 4, "--teacher-layer", "last"]
    done = runs.run("distill", "--teacher", base, "--out", tmp_path / "student", *small, *quick)
    assert "weights stored as float16" in done.json["notes"][-1]
    assert types(tmp_path / "student") == {"F16"}
    then = ["--then-task", "classification", "--data", data, "--finetune-steps", 2, "--head-steps", 1, "--rounds", 0]
    assert runs.run("adapt", "--model", base, "--out", tmp_path / "adapted", *then, *quick).json["task"]["steps"] == 2
    assert types(tmp_path / "adapted") == types(tmp_path / "adapted-classification") == {"F16"}
    assert types(tmp_path / "adapted.warmup") == {"F32"}
    assert slimformer.load(tmp_path / "adapted-classification").model.dtype == torch.float32


def test_trim_and_extend_keep_what_the_base_is_stored_as(half, pieces, tmp_path):
    (tmp_path / "text.txt").write_text("the film was good\na very dull plot\n" * 20)
    trim = ["trim", "--model", half, "--corpus", tmp_path / "text.txt", "--json"]
    done = runs.run(*trim, "--out", tmp_path / "trimmed").json["metrics"]
    assert types(tmp_path / "trimmed") == {"F16"}
    weights = sum(tensor.nbytes for tensor in load_file(tmp_path / "trimmed" / "model.safetensors").values())
    assert done["bytes_after"] == weights
    before = sum(tensor.nbytes for tensor in load_file(half / "model.safetensors").values())
    assert done["bytes_before"] == before
    assert runs.run(*trim, "--out", tmp_path / "whole", "--store", "float32").code == 0
    assert types(tmp_path / "whole") == {"F32"}
    extend = ["extend", "--model", pieces / "model", "--corpus", pieces / "text.txt", "--new-tokens", 2, "--json"]
    done = runs.run(*extend, "--out", tmp_path / "words", "--store", "half").json["metrics"]
    assert types(tmp_path / "words") == {"F16"}
    assert done["bytes"] < 0.6 * done["bytes_before"]


def test_extracting(base, data, tmp_path):
    common = ["--task", "classification", "--data", data, "--max-steps", 1, "--batch-size", 8, "--quiet"]
    assert runs.run("elastic", "--model", base, "--out", tmp_path / "elastic", *common).code == 0
    extract = ["extract", tmp_path / "elastic", "--json"]
    whole = runs.run(*extract, "--allocation", "M", "--out", tmp_path / "whole").json
    short = runs.run(*extract, "--allocation", "M", "--out", tmp_path / "short", "--store", "half").json
    assert short["bytes"] == whole["bytes"] / 2
    assert short["rounded"]["dtype"] == "float16"
    # Twice as much goes into the same bytes.
    limit = ["--max-bytes", whole["bytes"], "--store", "half"]
    larger = runs.run(*extract, *limit, "--out", tmp_path / "larger").json
    assert whole["parameters"] < larger["parameters"]
    assert larger["bytes"] <= whole["bytes"]
    done = runs.run("extract", tmp_path / "elastic", "--allocation", "M", "--publish", "phone", "--store", "half")
    done.refused("`--store` is `half`, and no file is written without `--out`", code=2)


def test_a_base_beyond_the_range_is_refused_before_training(base, data, tmp_path):
    runs.shutil.copytree(base, tmp_path / "base")
    tensors = load_file(tmp_path / "base" / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][0, 0] = 1e5
    save_file(tensors, tmp_path / "base" / "model.safetensors", {"format": "pt"})
    done = runs.finetune(tmp_path / "base", "classification", data, tmp_path / "out", "--store", "half")
    done.refused("`--store` is `half`", "word_embeddings.weight` holds 1e+05, beyond 65,504", "`--store bfloat16`")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.training").exists()
    done = runs.finetune(tmp_path / "base", "classification", data, tmp_path / "out", "--store", "bfloat16")
    assert done.code == 0, done.err


def test_a_type_that_is_none(base, data, tmp_path):
    runs.finetune(base, "classification", data, tmp_path / "out", "--store", "int8").refused("--store", code=2)
    assert not list(tmp_path.iterdir())


def test_a_finished_run_is_this_one_only_in_the_same_type(half, base, data):
    again = ["--resume", "--json", "--quiet"]
    kept = runs.finetune(base, "classification", data, half, "--store", "half", *again).json
    assert kept["metrics"] == read_manifest(half).metrics["classification/dev"]
    runs.finetune(base, "classification", data, half, "--resume").refused("exists")
