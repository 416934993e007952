"""LoRA on an elastic model: adapters work and learn at every size, are saved whole, and are merged into all sizes."""

from __future__ import annotations

import copy

import pytest
import torch

peft = pytest.importorskip("peft")

import slimformer  # noqa: E402
from slimformer.artifact import Step  # noqa: E402
from slimformer.errors import SizeError  # noqa: E402
from slimformer.sizes import Elastic, extract, make_elastic, merge_adapters, name_sizes, nest_adapters  # noqa: E402
from slimformer.views import attached  # noqa: E402
from tests import zoo  # noqa: E402

SIZES = name_sizes([0.25, 0.5, 1], heads=[0.5, 0.5, 1], depth=[0.5, 1, 1])
#: Family → layers that adapters are put on: all matrices of a block.
TARGETS = {
    "bert": ["query", "key", "value", "dense"],
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "vit": "all-linear",
}


def adapted(family, **settings):
    """An elastic model with adapters that are not zero."""
    model = zoo.build_headed(family)
    make_elastic(model, SIZES)
    config = {"r": 3, "target_modules": TARGETS[family], **settings}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**config)).eval()
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    return wrapped


def logits(model, family):
    with torch.no_grad():
        return model(**zoo.inputs_for(family)).logits


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("family", TARGETS)
def test_adapters_at_a_size_are_those_merged_into_it(family):
    model = adapted(family)
    sizes = nest_adapters(model)
    before = {}
    for size in ("S", "M", "XL", "M,XL,S"):
        with sizes.at(size):
            before[size] = logits(model, family)
            with model.disable_adapter():
                assert not torch.allclose(logits(model, family), before[size])
    sizes.published["phone"] = sizes.allocation("S")
    merged = merge_adapters(copy.deepcopy(model))
    assert Elastic.of(merged).allocation("phone") == sizes.allocation("S")
    assert not any("lora" in name for name, _ in merged.named_parameters())
    for size, expected in before.items():
        with Elastic.of(merged).at(size):
            same(logits(merged, family), expected)
    same(logits(extract(merged, "S"), family), before["S"])


def test_what_is_merged_is_saved_with_its_sizes(tmp_path):
    model = adapted("bert")
    with pytest.raises(SizeError, match="carries an adapter, and sizes are nested in plain weights; merge it first"):
        slimformer.save(tmp_path / "no", model, step=Step(method="elastic"))
    with nest_adapters(model).at("S"):
        expected = logits(model, "bert")
    slimformer.save(tmp_path / "out", merge_adapters(model), step=Step(method="elastic"))
    loaded = slimformer.load(tmp_path / "out")
    assert loaded.manifest.model.storage == "elastic"
    with Elastic.of(loaded.model).at("S"):
        same(logits(loaded.model, "bert"), expected)


def test_an_adapter_learns_what_is_in_use():
    model = adapted("llama", lora_dropout=0.1).train()
    sizes = nest_adapters(model)
    ids = zoo.inputs_for("llama", padding=None)["input_ids"]
    with sizes.at("M"):
        model(input_ids=ids, labels=ids).loss.backward()
    layer = model.get_base_model().model.layers[0].mlp
    up, down = layer.up_proj.lora_B["default"].weight.grad, layer.down_proj.lora_A["default"].weight.grad
    half = up.shape[0] // 2
    assert up[:half].abs().sum() > 0
    assert up[half:].abs().sum() == 0
    assert down[:, :half].abs().sum() > 0
    assert down[:, half:].abs().sum() == 0


def test_adapters_are_saved_whole_and_loaded_onto_the_elastic_model(tmp_path):
    model = adapted("bert")
    with nest_adapters(model).at("S"):
        expected = logits(model, "bert")
    model.save_pretrained(tmp_path)
    base = zoo.build_headed("bert")
    make_elastic(base, SIZES)
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    with nest_adapters(again).at("S"):
        same(logits(again, "bert"), expected)


def test_a_copy_has_its_own_sizes():
    model = adapted("bert")
    sizes = nest_adapters(model)
    with sizes.at("S"):
        small = logits(model, "bert")
    copied = copy.deepcopy(model)
    Elastic.of(copied).set("S")
    same(logits(copied, "bert"), small)
    assert not torch.allclose(logits(model, "bert"), small)


def test_what_cannot_be_cut_is_refused():
    model = adapted("bert", use_dora=True)
    with pytest.raises(SizeError, match=r"is cut by the sizes of the model, and its adapter \(.*Dora.*\) cannot be"):
        nest_adapters(model)
    elastic = zoo.build_headed("bert")
    make_elastic(elastic)
    with pytest.raises(SizeError, match="the model has no adapters"):
        nest_adapters(elastic)
    with pytest.raises(SizeError, match="has no adapters to merge"):
        merge_adapters(elastic)
    with pytest.raises(SizeError, match="carries an adapter, and sizes are nested in plain weights; merge it first"):
        extract(adapted("bert"), "S")
    plain = peft.get_peft_model(zoo.build_headed("bert"), peft.LoraConfig(target_modules=["query"]))
    with pytest.raises(SizeError, match="carries an adapter, and sizes are nested in plain weights; merge it first"):
        make_elastic(plain.get_base_model())
    assert next(attached(plain), None) is None


def test_adapters_beside_the_sliced_layers_are_left_alone():
    """DoRA on the attention of a model whose neurons alone are nested."""
    model = zoo.build_headed("bert")
    make_elastic(model)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], use_dora=True)).eval()
    with nest_adapters(wrapped).at("S"):
        assert logits(wrapped, "bert").isfinite().all()
