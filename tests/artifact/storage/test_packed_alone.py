"""A packed folder in the hands of Transformers: loud without slimformer, and the same model in any type."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import slimformer
from slimformer.artifact.storage.handler import storage_of
from slimformer.artifact.storage.packed import PackedStorage
from slimformer.errors import ArtifactError, ViewError
from slimformer.inference.door import look_up, open_model
from slimformer.operators import expand
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer
from tests.artifact.storage.test_packed import answers, assert_same, quantized

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
INPUTS = {"input_ids": torch.arange(5, 14)[None], "attention_mask": torch.ones(1, 9, dtype=torch.long)}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "out"
    slimformer.save(folder, quantized(tiny_bert()), processor=tiny_tokenizer(), step=STEP)
    return folder


#: Opens a folder by every class and way there is, in a process that does not know slimformer.
ALONE = """
import sys
import transformers as hf
folder = sys.argv[1]
ways = {
    "auto": lambda: hf.AutoModelForSequenceClassification.from_pretrained(folder),
    "bare": lambda: hf.AutoModel.from_pretrained(folder),
    "direct": lambda: hf.BertForSequenceClassification.from_pretrained(folder),
    "config": lambda: hf.BertModel.from_pretrained(folder, config=hf.AutoConfig.from_pretrained(folder)),
    "pipeline": lambda: hf.pipeline("text-classification", model=folder),
}
assert "slimformer" not in sys.modules
for name, way in ways.items():
    try:
        way()
    except Exception as error:
        print(name, "refused")
    else:
        print(name, "accepted")
"""


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["save", "save_pretrained", "loaded and saved"])
def test_transformers_alone_refuses_a_packed_folder(saved, packed, tmp_path):
    folder = packed
    if saved != "save":
        folder = tmp_path / "again"
        model = hf.AutoModelForSequenceClassification.from_pretrained(packed)
        copied = copy.deepcopy(model if saved == "loaded and saved" else quantized(tiny_bert()))
        copied.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    done = subprocess.run([sys.executable, "-c", ALONE, str(folder)], capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["refused"] * 5, done.stdout
    assert not (folder / "model.safetensors").exists()
    assert "transformers_weights" not in json.loads((folder / "config.json").read_text())


def test_a_copy_is_saved_as_it_is_and_not_as_the_original(packed, tmp_path):
    model = hf.AutoModelForSequenceClassification.from_pretrained(packed)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.classifier.bias.add_(1)
    copied.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "packed.safetensors")["classifier.bias"]
    assert torch.equal(stored.float(), copied.classifier.bias)
    assert not torch.equal(stored.float(), model.classifier.bias)


def test_an_old_folder_is_saved_anew_under_the_new_name(tmp_path):
    old = ARTIFACTS / "ternary"
    model = hf.AutoModelForSequenceClassification.from_pretrained(old)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "packed.safetensors").is_file()
    again = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


@pytest.mark.parametrize("name", ["rounded", "rounded-tensor"])
def test_rounded_activations_of_format_1_count_as_packed(name):
    manifest = json.loads((ARTIFACTS / name / "slimformer.json").read_text())
    assert manifest["format"] == 1
    assert isinstance(storage_of(ARTIFACTS / name), PackedStorage)
    assert look_up(ARTIFACTS / name).storage == "packed"


def test_attention_that_does_not_round_is_refused(packed):
    model = open_model(packed).model
    before = answers(model, INPUTS)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ViewError, match=r"attention was set to `sdpa`, which does not round"):
        model(**INPUTS)
    model.set_attn_implementation("slimformer")
    assert all(torch.equal(one, other) for one, other in zip(before, answers(model, INPUTS), strict=True))


def test_attention_asked_for_at_loading_is_rounded_all_the_same(packed):
    model = hf.AutoModelForSequenceClassification.from_pretrained(packed, attn_implementation="sdpa")
    assert_same(model, slimformer.load(packed).model, INPUTS)


def test_a_packed_model_in_bfloat16_is_saved_as_it_is(packed, tmp_path):
    model = hf.AutoModelForSequenceClassification.from_pretrained(packed, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "plain")
    again = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain")
    assert again.dtype == torch.bfloat16
    assert_same(model, again, INPUTS)
    codes = load_file(packed / "packed.safetensors"), load_file(tmp_path / "plain" / "packed.safetensors")
    packed_names = [name for name in codes[0] if ".weight." in name]
    assert packed_names
    assert all(torch.equal(codes[0][name], codes[1][name]) for name in packed_names)
    slimformer.save(tmp_path / "artifact", model, processor=tiny_tokenizer(), step=STEP)
    assert_same(model, slimformer.load(tmp_path / "artifact").model, INPUTS)
    slimformer.verify(tmp_path / "artifact")


def test_a_changed_weight_in_bfloat16_is_still_refused(packed, tmp_path):
    model = expand(hf.AutoModelForSequenceClassification.from_pretrained(packed, dtype=torch.bfloat16))
    with torch.no_grad():
        model.bert.pooler.dense.weight.mul_(1.5)
    with pytest.raises(ArtifactError, match="was changed after it was packed"):
        model.save_pretrained(tmp_path)


def test_weights_beside_those_that_are_read_are_refused(packed, tmp_path):
    from tests.artifact.forging import resum

    folder = shutil.copytree(packed, tmp_path / "copy")
    shutil.copy(folder / "packed.safetensors", folder / "model.safetensors")
    resum(folder)
    with pytest.raises(ArtifactError, match=r"holds `model\.safetensors`, which is no part of its model"):
        slimformer.load(folder)
