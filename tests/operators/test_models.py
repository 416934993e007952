"""Packed models in Transformers: what stays packed, and that it computes and copies as any other model."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import transformers as hf

import slimformer  # noqa: F401  (teaches Transformers to read packed weights)
from slimformer.errors import FormatError
from slimformer.operators import PackedTensor, coverage, expand
from slimformer.operators.modules import PackedLinear
from slimformer.runtime.architecture import ARCHITECTURES
from slimformer.runtime.native import is_built
from slimformer.views import packed_weights
from slimformer.views.rounding import in_floats, unrounded
from tests import zoo
from tests.artifact.storage.test_packed import quantized

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")


def loaded(model, folder, **settings):
    quantized(model, **settings).save_pretrained(folder)
    return type(model).from_pretrained(folder).eval()


def outputs(model, inputs):
    torch.manual_seed(0)
    with torch.no_grad():
        return [each for each in model(**inputs).values() if torch.is_tensor(each) and each.is_floating_point()]


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """Its head is tied to its table of words."""
    torch.manual_seed(0)
    model = zoo.enliven(hf.BertForMaskedLM(zoo.CONFIGS["bert"]())).eval()
    return loaded(model, tmp_path_factory.mktemp("mlm"))


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family_runs_packed(family, tmp_path):
    build = zoo.build if family in ("mpnet", "qwen2") else zoo.build_headed  # their heads want other inputs
    model = loaded(build(family), tmp_path)
    counted = coverage(model)
    assert counted.packed
    assert not counted.expanded
    inputs = zoo.inputs_for(family)
    with in_floats(model):
        floats = outputs(model, inputs)
    expanded = expand(copy.deepcopy(model))
    assert all(torch.equal(one, other) for one, other in zip(outputs(expanded, inputs), floats, strict=True))
    # A value near the middle of two steps may become the other one where a float sum ends in another bit.
    for packed, reference in zip(outputs(model, inputs), floats, strict=True):
        assert not packed.numel() or (packed - reference).abs().max() <= 0.05 * reference.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_layers_agree_with_floats_on_the_inputs_they_have(family, tmp_path):
    build = zoo.build if family in ("mpnet", "qwen2") else zoo.build_headed
    model = loaded(build(family), tmp_path)
    apart = []

    def compare(module, inputs, _):  # some families round what comes out, in hooks
        packed = module.forward(*inputs)
        with in_floats(module):
            reference = module.forward(*inputs)
        apart.append(float((packed - reference).abs().max() / reference.abs().max().clamp(min=1e-9)))

    modules = [module for module in model.modules() if getattr(module, "input_rounding", None) is not None]
    for module in modules:
        module.register_forward_hook(compare)
    outputs(model, zoo.inputs_for(family))
    assert len(apart) >= len(modules) > 0
    assert max(apart) <= 1e-4


def test_weights_in_memory_are_as_small_as_in_the_file(tmp_path):
    config = hf.BertConfig(
        vocab_size=3000, hidden_size=384, num_hidden_layers=2, num_attention_heads=12, intermediate_size=1536
    )
    model = hf.BertModel(config).eval()
    full = sum(each.numel() * each.element_size() for each in model.parameters())
    packed = loaded(model, tmp_path)
    counted = coverage(packed)
    in_matrices = sum(weight.columns * len(weight.codes) for weight in packed_weights(packed).values())
    others = sum(each.numel() for each in packed.parameters() if not isinstance(each, PackedTensor))
    scales = sum(-(-len(weight.codes) // 16) * 16 for weight in packed_weights(packed).values())
    buffers = sum(each.numel() * each.element_size() for each in packed.buffers())
    assert counted.bytes <= in_matrices / 4 * 1.01 + 4 * (others + scales) + buffers
    assert counted.bytes < full / 8
    # What is kept for saving is the same memory.
    for name, weight in packed_weights(packed).items():
        assert weight.held.panels is packed.get_parameter(name).panels


def test_nothing_is_expanded_while_it_is_loaded_and_run(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    model = quantized(zoo.build("bert"))
    model.save_pretrained(folder)

    def refuse(self):
        raise AssertionError("a weight was expanded")

    monkeypatch.setattr(PackedTensor, "dequantize", refuse)
    again = type(model).from_pretrained(folder).eval()
    outputs(again, zoo.inputs_for("bert"))
    again.save_pretrained(tmp_path / "again")


def test_a_model_with_weights_the_kernels_do_not_know_runs_in_floats(tmp_path):
    model = loaded(zoo.build("bert"), tmp_path / "groups", granularity="group", group_size=7)
    assert coverage(model).packed == ("embeddings.word_embeddings.weight",)  # whose scales are for rows
    model = loaded(zoo.build("bert"), tmp_path / "floats", activations="none")
    assert coverage(model).packed == ("embeddings.word_embeddings.weight",)
    assert all(type(module) is not PackedLinear or module.input_rounding is None for module in model.modules())


def test_copies_and_states_are_those_of_the_model(language_model, tmp_path):
    inputs = zoo.inputs_for("bert")
    (answer, *_) = outputs(language_model, inputs)
    copied = copy.deepcopy(language_model)
    table, head = copied.bert.embeddings.word_embeddings, copied.cls.predictions.decoder
    assert table.weight is head.weight is not language_model.cls.predictions.decoder.weight
    assert isinstance(table.weight, PackedTensor)
    assert isinstance(table.weight, torch.nn.Parameter)
    held = io.BytesIO()
    torch.save(language_model.state_dict(), held)
    held.seek(0)
    copied.load_state_dict(torch.load(held))
    assert torch.equal(outputs(copied, inputs)[0], answer)
    halves = copy.deepcopy(language_model).to(torch.bfloat16)
    assert not coverage(halves).expanded
    (half, *_) = outputs(halves, inputs)
    assert half.dtype == torch.bfloat16
    assert (half.float() - answer).abs().max() < 0.2 * answer.abs().max()
    assert copy.deepcopy(language_model).to("meta").cls.predictions.decoder.weight.is_meta
    language_model.save_pretrained(tmp_path)
    again = type(language_model).from_pretrained(tmp_path).eval()
    assert torch.equal(outputs(again, inputs)[0], answer)


def test_expanding_a_copy_leaves_the_model_and_what_is_tied(language_model):
    copied = expand(copy.deepcopy(language_model))
    table, head = copied.bert.embeddings.word_embeddings, copied.cls.predictions.decoder
    assert type(table.weight) is torch.nn.Parameter
    assert table.weight is head.weight
    assert not coverage(copied).packed
    assert not coverage(language_model).expanded
    assert packed_weights(copied).keys() == packed_weights(language_model).keys()


def test_a_packed_weight_is_not_changed_in_place(language_model):
    weight = language_model.cls.predictions.decoder.weight
    with torch.no_grad(), pytest.raises(FormatError, match=r"expand\(model\)"):
        weight.mul_(2)
    with torch.no_grad(), pytest.raises(FormatError, match="packed likewise"):
        weight.copy_(torch.zeros(weight.shape))


def test_floats_inside_floats_are_left_in_floats(language_model):
    layer = language_model.bert.encoder.layer[0].output.dense
    with in_floats(language_model):
        with in_floats(layer):
            assert not layer.by_operator
        assert not layer.by_operator
    assert layer.by_operator


def test_without_rounding_weights_stay_packed(language_model):
    inputs = zoo.inputs_for("bert")
    (before, *_) = outputs(language_model, inputs)
    with unrounded(language_model):
        (exact, *_) = outputs(language_model, inputs)
    assert not torch.equal(exact, before)
    assert torch.equal(outputs(language_model, inputs)[0], before)
    assert not coverage(language_model).expanded


@pytest.mark.slow
def test_it_is_compiled_and_exported(language_model):
    inputs = dict(zoo.inputs_for("bert"))
    (answer, *_) = outputs(language_model, inputs)
    torch._dynamo.reset()
    compiled = torch.compile(language_model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(**inputs).logits, answer)
        exported = torch.export.export(language_model, (), inputs).run_decompositions()
        held = io.BytesIO()
        torch.export.save(exported, held)
        held.seek(0)
        assert torch.equal(torch.export.load(held).module()(**inputs).logits, answer)
    used = {str(node.target) for node in exported.graph.nodes}
    assert {"slimformer.linear.default", "slimformer.embedding.default"} <= used


@pytest.mark.slow
def test_no_family_of_the_engine_falls_back(tmp_path):
    """By format: matrices that run as floats, of all that are packed; the guide has the table."""
    for family in ARCHITECTURES:
        for weights in ("ternary", "int4", "int8"):
            folder = tmp_path / f"{family}-{weights}"
            assert not coverage(loaded(zoo.build(family), folder, weights=weights)).expanded
