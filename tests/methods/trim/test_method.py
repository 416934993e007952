"""`slimformer trim`: a smaller vocabulary as an artifact like any other."""

from __future__ import annotations

import json

import pytest
import torch

import slimformer
from slimformer.artifact import read_manifest, verify
from slimformer.models.sentence import SentenceSettings
from tests import corpus, runs

TEXT = "the film was good\na very dull plot\n"


@pytest.fixture
def place(tmp_path):
    corpus.model_folder(tmp_path / "base")
    corpus.data_folder(tmp_path / "data")
    (tmp_path / "text.txt").write_text(TEXT * 20)
    return tmp_path


def trim(place, *flags, model="base", out="out"):
    return runs.run("trim", "--model", place / model, "--corpus", place / "text.txt", "--out", place / out, *flags)


def test_the_whole_way(place):
    done = trim(place, "--json").json
    assert done["metrics"]["coverage"] == 1
    assert done["metrics"]["pieces_after"] < done["metrics"]["pieces_before"] == 5 + len(corpus.WORDS)
    assert done["metrics"]["bytes_after"] == (place / "out" / "model.safetensors").stat().st_size - header(
        place / "out"
    )
    verify(place / "out")
    before, after = (slimformer.models.load_processor(place / name) for name in ("base", "out"))
    assert before.tokenize("the film was dull") == after.tokenize("the film was dull")
    old, new = (runs.hf.AutoModel.from_pretrained(place / name).eval() for name in ("base", "out"))
    with torch.no_grad():
        outputs = [
            model(**reader("the film was dull", return_tensors="pt")).last_hidden_state
            for model, reader in ((old, before), (new, after))
        ]
    assert torch.equal(*outputs)
    assert [step.method for step in read_manifest(place / "out").steps] == ["trim"]


def header(folder):
    """Bytes of a safetensors file that are no weights."""
    with (folder / "model.safetensors").open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


@pytest.mark.slow
def test_a_fine_tuned_model_stays_one_and_others_may_follow(place):
    (place / "text.txt").write_text((place / "data" / "train.tsv").read_text())
    assert runs.finetune(place / "base", "classification", place / "data", place / "tuned").code == 0
    assert trim(place, model="tuned").code == 0
    measured = [
        runs.run("evaluate", place / name, "--data", place / "data", "--json").json for name in ("tuned", "out")
    ]
    assert measured[0]["metrics"] == measured[1]["metrics"]
    flags = ["--task", "classification", "--data", place / "data", "--max-steps", 2]
    assert runs.run("quantize", "--model", place / "out", *flags, "--out", place / "ternary").code == 0
    steps = read_manifest(place / "ternary").steps
    assert [step.method for step in steps] == ["finetune", "trim", "quantize"]


def test_the_same_command_again_reads_its_result(place):
    first = trim(place, "--json").json
    assert trim(place, "--json", "--resume").json["metrics"] == first["metrics"]
    trim(place).refused("exists")


def test_keep_and_always(place):
    done = trim(place, "--coverage", 0.5, "--always", "lovely", "--json").json
    assert "lovely" in slimformer.models.load_processor(place / "out").get_vocab()
    assert done["metrics"]["coverage"] >= 0.5
    trim(place, "--keep", 3, "--coverage", 0.9, out="other").refused("both say how many pieces stay", code=2)
    assert not (place / "other").exists()


def test_what_cannot_be_trimmed_is_refused(place):
    flags = ["--model", place / "base", "--task", "classification", "--data", place / "data", "--max-steps", 2]
    assert runs.run("mask", *flags, "--blocks", "0-", "--out", place / "mask").code == 0
    trim(place, model="mask").refused("is a mask on a base")
    runs.viewer(place / "vit")
    trim(place, model="vit").refused("sees images and has no word pieces to trim")
    (place / "text.txt").write_text("")
    assert trim(place).code == 1
    assert not (place / "out").exists()
    assert not (place / "out.training").exists()


def test_a_16_bit_checkpoint_stays_one(place):
    model = runs.hf.AutoModel.from_pretrained(place / "base", dtype=torch.bfloat16)
    model.save_pretrained(place / "half")
    corpus.tokenizer().save_pretrained(place / "half")
    assert trim(place, model="half").code == 0
    config = json.loads((place / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    sizes = [(place / name / "model.safetensors").stat().st_size for name in ("half", "out")]
    assert sizes[1] < sizes[0]


def test_a_sentence_encoder_stays_one_and_one_with_more_steps_is_no_obstacle(place):
    settings = SentenceSettings(("cls",), normalize=True)
    settings.write(place / "base", 32)
    assert trim(place).code == 0
    assert SentenceSettings.read(place / "out") == settings
    modules = json.loads((place / "base" / "modules.json").read_text())
    modules.append({"idx": 9, "name": "9", "path": "9_Dense", "type": "sentence_transformers.models.Dense"})
    (place / "base" / "modules.json").write_text(json.dumps(modules))
    assert trim(place, out="other").code == 0
    assert SentenceSettings.read(place / "other") is None
