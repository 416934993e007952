"""Every size in one packed file: codes are cut as weights are, in memory, extracted and on disk."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import AutoModel

import slimformer
from slimformer import Anatomy
from slimformer.artifact.storage.elastic import PackedElasticStorage
from slimformer.inference.extraction import extract
from slimformer.methods.quantize.config import NumberOptions
from slimformer.methods.quantize.student import quantize_numbers
from slimformer.sizes import Costs, Elastic, bake_size, make_elastic, name_sizes
from slimformer.sizes.table import SizesRecord
from slimformer.views import packed_weights, quantized_weights
from tests import zoo
from tests.artifact.conftest import STEP
from tests.artifact.storage.test_packed import WAYS, answers, assert_same, quantized

#: Widths for which groups of seven and units of five codes do not come out even.
SHARES = (0.3, 0.55, 1.0)


def nested_heads(model):
    return Anatomy.of(model).family.heads_pinned_by is None


def saved(model, folder, heads):
    """A quantized model as an elastic artifact."""
    elastic = make_elastic(model, name_sizes(SHARES, SHARES if heads else None))
    record = SizesRecord.of(elastic)
    bake_size(model)
    slimformer.save(folder, model, step=STEP, storage=PackedElasticStorage(record))


@pytest.mark.parametrize("way", WAYS)
def test_codes_under_slices_are_the_codes_of_what_is_shown(way):
    model = zoo.build("gpt2")  # its matrices are fused and transposed
    quantize_numbers(model, NumberOptions(**WAYS[way]))
    elastic = make_elastic(model, name_sizes(SHARES, SHARES))
    for size in elastic.names:
        with elastic.at(size):
            for weight in quantized_weights(model):
                module = model.get_submodule(weight.path)
                shown = module.weight.mT if weight.transposed else module.weight
                assert torch.equal(weight.weight, shown)


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_an_extracted_packed_model_is_the_sliced_one(family, tmp_path):
    model, inputs = quantized(zoo.build(family)), zoo.inputs_for(family)
    heads = nested_heads(model)
    saved(model, tmp_path / "elastic", heads)
    loaded = slimformer.load(tmp_path / "elastic").model
    elastic, costs = Elastic.of(loaded), Costs.of(loaded, "bytes")
    mixed = ",".join(["S"] + ["XL"] * (len(elastic.blocks) - 1))
    for allocation in ("S", mixed):
        out = tmp_path / f"out-{allocation}"
        result = extract(tmp_path / "elastic", out, allocation=allocation)
        assert result.manifest.model.storage == "packed"
        assert result.bytes == costs.total(elastic.allocation(allocation))
        alone = slimformer.load(out).model
        with elastic.at(allocation):
            assert_same(loaded, alone, inputs)
        assert packed_weights(alone).keys() == packed_weights(loaded).keys()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "float weights"])
def test_every_way_of_packing_can_be_cut_and_packed_again(way, tmp_path):
    model, inputs = quantized(zoo.build("llama"), **WAYS[way]), zoo.inputs_for("llama")
    whole = answers(model, inputs)
    saved(model, tmp_path / "elastic", heads=True)
    loaded = slimformer.load(tmp_path / "elastic").model
    assert all(torch.equal(one, other) for one, other in zip(answers(loaded, inputs), whole, strict=True))
    elastic = Elastic.of(loaded)
    extract(tmp_path / "elastic", tmp_path / "out", allocation="S,XL,M")
    with elastic.at("S,XL,M"):
        assert_same(loaded, slimformer.load(tmp_path / "out").model, inputs)


@pytest.mark.slow
def test_a_packed_model_of_own_widths_needs_slimformer(tmp_path):
    model = quantized(zoo.build("llama"))
    saved(model, tmp_path / "elastic", heads=False)
    extract(tmp_path / "elastic", tmp_path / "out", allocation="S,XL,XL")
    code = f"import transformers; transformers.AutoModel.from_pretrained({str(tmp_path / 'out')!r})"
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert alone.returncode != 0
    assert "packed" in alone.stderr or "safetensors" in alone.stderr
    code = f"import slimformer, transformers; transformers.AutoModel.from_pretrained({str(tmp_path / 'out')!r})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_packed_elastic_model_is_saved_again(tmp_path):
    model, inputs = quantized(zoo.build("llama")), zoo.inputs_for("llama")
    saved(model, tmp_path / "elastic", heads=True)
    loaded = slimformer.load(tmp_path / "elastic").model
    slimformer.save(tmp_path / "again", loaded, step=STEP)
    again = slimformer.load(tmp_path / "again")
    assert again.manifest.model.storage == "packed-elastic"
    with Elastic.of(loaded).at("S"), Elastic.of(again.model).at("S"):
        assert_same(loaded, again.model, inputs)
    loaded.save_pretrained(tmp_path / "largest")
    assert [path.name for path in (tmp_path / "largest").glob("*.safetensors")] == ["packed.safetensors"]
    assert_same(loaded, AutoModel.from_pretrained(tmp_path / "largest"), inputs)
