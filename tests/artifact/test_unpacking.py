"""Packed artifacts as plain checkpoints: the weights bit for bit, and what activations that round no more change."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from safetensors import safe_open

import slimformer
from slimformer.artifact import Step, merge, read_manifest, save, unpack, verify
from slimformer.artifact.storage.elastic import ElasticStorage
from slimformer.errors import ArtifactError
from slimformer.inference.extraction import extract, publish
from slimformer.sizes import Elastic, make_elastic, make_plain, name_sizes
from slimformer.sizes.table import SizesRecord
from slimformer.views import unrounded
from tests import corpus, zoo
from tests.artifact.conftest import STEP, tiny_bert, tiny_tokenizer
from tests.artifact.storage.test_packed import WAYS, answers, quantized
from tests.artifact.storage.test_packed_elastic import SHARES, nested_heads, saved
from tests.parameters import slow

TASK = {"name": "sst2", "kind": "classification", "labels": ["bad", "good", "neither"]}


def packed_folder(folder, **options):
    metrics = {"sst2/dev": {"accuracy": 0.89}}
    save(folder, quantized(tiny_bert(), **options), processor=tiny_tokenizer(), step=STEP, metrics=metrics, task=TASK)
    return folder


def assert_near(one, other, inputs):
    pairs = list(zip(answers(one, inputs), answers(other, inputs), strict=True))
    assert pairs
    assert all(torch.allclose(before, after, rtol=1e-4, atol=1e-5) for before, after in pairs)


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_those_of_the_codes(way, tmp_path):
    packed_folder(tmp_path / "packed", **WAYS[way])
    manifest = unpack(tmp_path / "packed", tmp_path / "plain")
    assert (manifest.model.storage, manifest.model.packed) == ("plain", None)
    packed, plain = slimformer.load(tmp_path / "packed").model, slimformer.load(tmp_path / "plain").model
    state = plain.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in packed.state_dict().items())
    with unrounded(packed):
        assert_near(packed, plain, {"input_ids": torch.tensor([[5, 6, 7]])})


def test_anyone_loads_it(tmp_path):
    unpack(packed_folder(tmp_path / "packed"), tmp_path / "plain")
    config = hf.AutoConfig.from_pretrained(tmp_path / "plain")
    assert not hasattr(config, "quantization_config")
    alone = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain").eval()
    assert not getattr(alone, "is_quantized", False)
    assert_near(alone, slimformer.load(tmp_path / "plain").model, {"input_ids": torch.tensor([[5, 6, 7]])})
    with safe_open(tmp_path / "plain" / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118
    assert verify(tmp_path / "plain").max_difference < 1e-5


def test_what_rounding_did_is_measured_and_recorded(tmp_path):
    packed = packed_folder(tmp_path / "packed")
    before = slimformer.load(packed).model
    manifest = unpack(packed, tmp_path / "plain", command="slimformer unpack")
    *earlier, last = manifest.steps
    assert [step.method for step in earlier] == ["finetune"]
    assert (last.method, last.command) == ("unpack", "slimformer unpack")
    assert last.base.fingerprint == read_manifest(packed).model.fingerprint
    assert last.config["activations"]["bits"] == 8
    assert 0 < last.config["moved"] < 0.5
    after = slimformer.load(tmp_path / "plain").model
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    assert not torch.equal(answers(before, ids)[0], answers(after, ids)[0])
    # Metrics are of a model that rounded.
    assert manifest.metrics == {}
    assert manifest.task == read_manifest(packed).task


def test_without_rounded_activations_nothing_moves(tmp_path):
    packed = packed_folder(tmp_path / "packed", weights="8", activations="none")
    manifest = unpack(packed, tmp_path / "plain")
    assert manifest.steps[-1].config == {"moved": 0.0, "activations": None}
    assert manifest.metrics == read_manifest(packed).metrics


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family(family, tmp_path):
    build = zoo.build if family in ("mpnet", "qwen2") else zoo.build_headed
    save(tmp_path / "packed", quantized(build(family)), step=STEP)
    unpack(tmp_path / "packed", tmp_path / "plain")
    packed, plain = slimformer.load(tmp_path / "packed").model, slimformer.load(tmp_path / "plain").model
    with unrounded(packed):
        assert_near(packed, plain, zoo.inputs_for(family))


@pytest.mark.parametrize("family", slow(["bert", "llama", "gpt2"], but=["gpt2"]))
def test_nested_sizes_stay(family, tmp_path):
    model, inputs = quantized(zoo.build(family)), zoo.inputs_for(family)
    saved(model, tmp_path / "packed", nested_heads(model))
    publish(tmp_path / "packed", "phone", allocation="S")
    manifest = unpack(tmp_path / "packed", tmp_path / "plain")
    assert manifest.model.storage == "elastic"
    verify(tmp_path / "plain")
    packed, plain = slimformer.load(tmp_path / "packed").model, slimformer.load(tmp_path / "plain").model
    assert Elastic.of(plain).names == Elastic.of(packed).names
    for size in (*Elastic.of(plain).names, "phone"):
        with Elastic.of(packed).at(size), Elastic.of(plain).at(size), unrounded(packed):
            assert_near(packed, plain, inputs)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", slow(["bert", "llama", "gpt2"], but=["gpt2"]))
def test_blocks_of_different_widths_are_filled_up(family, packed, tmp_path):
    model, inputs = zoo.build(family), zoo.inputs_for(family)
    heads = nested_heads(model)
    if packed:
        saved(quantized(model), tmp_path / "elastic", heads)
    else:
        record = SizesRecord.of(make_elastic(model, name_sizes(SHARES, SHARES if heads else None)))
        save(tmp_path / "elastic", make_plain(model), step=STEP, storage=ElasticStorage(record))
    blocks = len(Elastic.of(slimformer.load(tmp_path / "elastic").model).blocks)
    mixed = extract(tmp_path / "elastic", tmp_path / "mixed", allocation=",".join(["S"] + ["XL"] * (blocks - 1)))
    assert mixed.manifest.model.storage == ("packed" if packed else "per-block")
    manifest = unpack(tmp_path / "mixed", tmp_path / "plain")
    assert manifest.model.storage == "plain"
    assert not hasattr(hf.AutoConfig.from_pretrained(tmp_path / "plain"), "quantization_config")
    narrow, plain = slimformer.load(tmp_path / "mixed").model, slimformer.load(tmp_path / "plain").model
    with unrounded(narrow):
        assert_near(narrow, plain, inputs)


def test_half_of_the_bytes(tmp_path):
    manifest = unpack(packed_folder(tmp_path / "packed"), tmp_path / "plain", store="half")
    assert manifest.model.rounded.dtype == "float16"
    assert manifest.steps[-1].config["store"] == "half"
    verify(tmp_path / "plain")


def test_what_is_not_packed_is_told_where_to_go(tmp_path):
    save(tmp_path / "plain", tiny_bert(), processor=tiny_tokenizer(), step=STEP)
    with pytest.raises(ArtifactError, match=r"is not packed, its storage is `plain`; it loads without slimformer"):
        unpack(tmp_path / "plain", tmp_path / "out")
    corpus.model_folder(tmp_path / "base")
    model = hf.BertForSequenceClassification.from_pretrained(tmp_path / "base").eval()
    described = {"base": tmp_path / "base", "processor": corpus.tokenizer(), "step": Step(method="mask")}
    save(tmp_path / "mask", model, **described, storage="mask")
    with pytest.raises(ArtifactError, match=r"is a mask; make a plain checkpoint of it with `slimformer merge`"):
        unpack(tmp_path / "mask", tmp_path / "out")
    packed_folder(tmp_path / "packed")
    with pytest.raises(ArtifactError, match=r"is packed and no mask; .* with `slimformer unpack`"):
        merge(tmp_path / "packed", tmp_path / "out")
    with pytest.raises(ArtifactError, match=r"the packed model .* itself, which would be lost"):
        unpack(tmp_path / "packed", tmp_path / "packed", overwrite=True)
    with pytest.raises(ArtifactError, match=r"exists; choose another `--out`"):
        unpack(tmp_path / "packed", tmp_path / "plain")
    assert not (tmp_path / "out").exists()
    unpack(tmp_path / "packed", tmp_path / "plain", overwrite=True)
    assert read_manifest(tmp_path / "plain").steps[-1].method == "unpack"
