"""A model whose matrices are in blocks computes what the packed model computes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from slimformer.integrations.onnx.matrices import BlockEmbedding, BlockLinear, replace_matrices
from slimformer.registry import FORMATS
from slimformer.views import packed_weights, unrounded
from tests import zoo
from tests.export import making


def answers(model: nn.Module, inputs: dict) -> list[torch.Tensor]:
    with torch.no_grad():
        found = model(**inputs)
    return [value for name, value in found.items() if isinstance(value, torch.Tensor) and name != "loss"]


def inputs_for(family: str) -> dict:
    inputs = zoo.inputs_for(family)
    if zoo.HEADED[family].__name__.endswith("MultipleChoice"):
        return {name: value[None] for name, value in inputs.items()}
    return inputs


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family_computes_the_same_with_blocks(family):
    model = making.quantized(making.headed(family))
    inputs = inputs_for(family)
    with unrounded(model):
        expected = answers(model, inputs)
        blocks = copy.deepcopy(model)
    assert replace_matrices(blocks, "ternary") == len(packed_weights(model))
    assert not any(type(module) is nn.Linear for block in zoo_blocks(blocks) for module in block.modules())
    for found, wanted in zip(answers(blocks, inputs), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def zoo_blocks(model: nn.Module) -> list[nn.Module]:
    """The lists of blocks of the base; a decoder for pre-training beside it stays in float."""
    lists = [module for module in model.base_model.modules() if isinstance(module, nn.ModuleList)]
    return [block for blocks in lists for block in blocks]


@pytest.mark.parametrize("weights", [name for name in FORMATS if name != "ternary"])
def test_other_numbers_than_ternary_ones(weights):
    model = making.quantized(making.bert(100), weights=weights, embedding="ternary")
    with unrounded(model):
        (expected,) = answers(model, zoo.inputs_for("bert"))
        blocks = copy.deepcopy(model)
    replace_matrices(blocks, "packed")
    torch.testing.assert_close(answers(blocks, zoo.inputs_for("bert"))[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "gpt2", "gemma", "vit"])
def test_rounding_to_int8_stays_close(family):
    model = making.headed(family)
    inputs = inputs_for(family)
    (expected,) = answers(model, inputs)
    rounded = copy.deepcopy(model)
    replace_matrices(rounded, "int8")
    (found,) = answers(rounded, inputs)
    assert 0 < (found - expected).abs().max() < 0.05 * expected.abs().max()


def test_a_shared_weight_is_held_once():
    model = making.quantized(making.headed("gpt2"))
    replace_matrices(model, "ternary")
    assert isinstance(model.lm_head, BlockLinear)
    assert isinstance(model.transformer.wte, BlockEmbedding)
    assert model.lm_head.codes is model.transformer.wte.codes


def test_a_layer_with_ways_of_its_own_is_left_in_float():
    class Doubling(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = making.headed("bert")
    model.classifier.__class__ = Doubling
    (expected,) = answers(model, zoo.inputs_for("bert"))
    replace_matrices(model, "int8")
    assert type(model.classifier) is Doubling
    assert (answers(model, zoo.inputs_for("bert"))[0] - expected).abs().max() < 0.05 * expected.abs().max()
