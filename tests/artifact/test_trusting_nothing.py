"""What someone who knows the format can put into an artifact: `load` and `verify` refuse the same."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from slimformer.artifact import Step, load, save, verify
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.bank import MaskBank
from slimformer.errors import ArtifactError, CheckpointError, SlimformerError
from slimformer.inference.door import open_model
from tests import corpus
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer
from tests.artifact.forging import edit, resum
from tests.artifact.storage.test_packed import quantized
from tests.artifact.test_mask import described, masked_model

#: The ways of opening an artifact; all check the same.
WAYS = {"load": load, "verify": verify, "open_model": open_model}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masks")
    corpus.model_folder(folder / "base")
    save(folder / "mask", masked_model(folder / "base"), **described(folder), storage="mask")
    return folder


def rewrite(path, **changes):
    """Change tensors of a safetensors file."""
    save_file({**load_file(path), **changes}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_no_number_is_not_saved(value, tmp_path):
    model = tiny_bert()
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[39, 3] = value  # a token that no probe asks for
        model.bert.embeddings.position_embeddings.weight[19, 3] = value
    with pytest.raises(ArtifactError, match=r"word_embeddings\.weight` of the `Bert.*` holds nan or infinity"):
        save(tmp_path / "out", model, processor=tiny_tokenizer(), step=STEP)
    assert not (tmp_path / "out").exists()


def test_a_weight_that_is_no_number_is_found_wherever_it_lies(artifact, way):
    path = artifact / "model.safetensors"
    table = load_file(path)["bert.embeddings.position_embeddings.weight"]
    table[19, 3] = torch.nan  # the probe has twelve positions
    rewrite(path, **{"bert.embeddings.position_embeddings.weight": table})
    resum(artifact)
    with pytest.raises(ArtifactError, match=r"position_embeddings\.weight` of .* holds nan or infinity"):
        way(artifact)


def test_scales_that_are_no_numbers_are_found(tmp_path, way):
    save(tmp_path / "out", quantized(tiny_bert()), processor=tiny_tokenizer(), step=STEP)
    path = tmp_path / "out" / "packed.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("_scales"))
    rewrite(path, **{name: torch.full_like(tensors[name], torch.inf)})
    resum(tmp_path / "out")
    with pytest.raises(ArtifactError, match=r"nan or infinity|cannot be unpacked"):
        way(tmp_path / "out")


def test_an_index_out_of_the_folder_is_not_followed(artifact, way, tmp_path):
    tensors = load_file(artifact / "model.safetensors")
    (artifact / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "../elsewhere.safetensors")}
    (artifact / "model.safetensors.index.json").write_text(json.dumps(index))
    manifest = json.loads((artifact / "slimformer.json").read_text())
    resum(artifact, fingerprint=manifest["model"]["fingerprint"])
    with pytest.raises(
        ArtifactError, match=r"names the file `\.\./elsewhere\.safetensors`, which is not in its folder"
    ):
        way(artifact)


def test_a_mask_without_its_head_is_refused(masks, way, tmp_path):
    folder = shutil.copytree(masks / "mask", tmp_path / "mask")
    file = MaskFile.read(folder / "mask.safetensors")
    whole = {name: tensor for name, tensor in file.whole.items() if not name.startswith("classifier")}
    assert len(whole) < len(file.whole)
    MaskFile(file.base, file.bits, file.shapes, file.kept, whole).write(folder / "mask.safetensors")
    resum(folder)
    with pytest.raises(ArtifactError, match=r"has `classifier\.\w+`; copy the mask again"):
        way(folder)
    with pytest.raises(ArtifactError, match=r"has `classifier\.\w+`; copy the mask again"):
        MaskBank(masks / "base").add("task", folder)


@pytest.mark.parametrize(
    ("key", "value"), [("layer_norm_eps", 0.5), ("hidden_act", "relu"), ("num_attention_heads", 4)]
)
def test_other_answers_than_recorded_are_refused(artifact, way, key, value):
    edit(artifact / "config.json", **{key: value})
    resum(artifact)
    with pytest.raises(ArtifactError, match="does not give the outputs recorded at saving"):
        way(artifact)


@pytest.mark.parametrize("dtype", ["bfloat16", True, None])
def test_another_type_than_recorded_is_refused(artifact, way, dtype):
    edit(artifact / "config.json", dtype=dtype)
    resum(artifact)
    # A config that no model can have is refused where configs are read.
    recorded = f"gives the type `{dtype}`, and the artifact is of `float32`"
    with pytest.raises((ArtifactError, CheckpointError), match=rf"{recorded}|has `dtype` `True`, and weights are of"):
        way(artifact)


def test_without_checking_answers_are_not_compared(artifact):
    edit(artifact / "config.json", layer_norm_eps=0.5)
    resum(artifact)
    assert load(artifact, check=False).model.config.layer_norm_eps == 0.5


@pytest.mark.parametrize("shape", [[1, 60_000], [60, 1025], [2_000_000, 1]])
def test_a_probe_that_takes_gigabytes_is_not_asked(artifact, way, shape):
    probe = json.loads((artifact / "probe.json").read_text())
    count = shape[0] * shape[1]
    probe["inputs"] = {"input_ids": {"dtype": "int64", "shape": shape, "values": [5] * count}}
    (artifact / "probe.json").write_text(json.dumps(probe))
    resum(artifact)
    with pytest.raises(ArtifactError, match="is not a probe"):
        way(artifact)


def test_a_tokenizer_beyond_the_model_is_refused(artifact, way):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"word{number}" for number in range(31)])
    tokenizer.save_pretrained(artifact)
    resum(artifact)
    with pytest.raises(ArtifactError, match="has tokens up to number 40, and the model knows 40"):
        way(artifact)


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "num_labels", "max_position_embeddings"])
def test_a_config_that_asks_for_gigabytes_is_refused(artifact, way, key):
    changes = {key: 1_000_000_000, **({"id2label": None, "label2id": None} if key == "num_labels" else {})}
    edit(artifact / "config.json", **changes)
    resum(artifact)
    with pytest.raises(SlimformerError, match=r"asks for|are built"):
        way(artifact)


def test_a_chain_goes_on_from_an_artifact(artifact, tmp_path):
    """What is refused is what was changed: an artifact as it was saved is a base like any other."""
    opened = open_model(artifact)
    save(tmp_path / "next", opened.model, processor=opened.processor, base=artifact, step=Step(method="finetune"))
    assert [step.method for step in verify_steps(tmp_path / "next")] == ["finetune", "finetune"]


def verify_steps(folder):
    verify(folder)
    return load(folder).manifest.steps
