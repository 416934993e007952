"""Weights of a few levels beyond the reference's ternary ones, and codes as they are stored."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from slimformer import Anatomy
from slimformer.errors import ViewError
from slimformer.views import (
    BinaryView,
    IntegerView,
    MaskView,
    TernaryView,
    attach,
    bake,
    describe,
    quantized_weights,
    restore,
    round_weight,
    sign_weight,
    ternarize,
)
from tests import zoo

QUANTIZERS = {
    "ternary": ternarize,
    "binary": sign_weight,
    **{f"{bits} bits": lambda weight, bits=bits, **more: round_weight(weight, bits, **more) for bits in (2, 4, 8)},
}
VIEWS = {
    "ternary": TernaryView,
    "binary": BinaryView,
    **{f"{bits} bits": lambda *args, bits=bits, **more: IntegerView(bits, *args, **more) for bits in (2, 4, 8)},
}
LEVELS = {"ternary": 3, "binary": 2, "2 bits": 4, "4 bits": 15, "8 bits": 255}


@pytest.mark.parametrize("name", QUANTIZERS)
@given(seed=st.integers(0, 2**16), rows=st.integers(1, 4), columns=st.integers(1, 23), size=st.integers(1, 25))
@settings(max_examples=40, deadline=None)
def test_a_group_is_quantized_as_if_it_were_alone(name, seed, rows, columns, size):
    torch.manual_seed(seed)
    weight = torch.randn(rows, columns, dtype=torch.float64)
    shown = QUANTIZERS[name](weight, per="group", group_size=size)
    for start in range(0, columns, size):
        alone = QUANTIZERS[name](weight[:, start : start + size], per="row")
        torch.testing.assert_close(shown[:, start : start + size], alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("per", ["matrix", "row"])
def test_levels_scales_and_gradients(name, per):
    weight = torch.randn(6, 400)
    weight[2, :5] = torch.tensor([2.5, -2.5, 3.0, -9.0, 2.4999])
    weight.requires_grad_()
    shown = QUANTIZERS[name](weight, per=per)
    for unit in [shown] if per == "matrix" else shown:
        assert len(unit.unique()) <= LEVELS[name]
    gradient = torch.randn(6, 400)
    shown.backward(gradient)
    outside = weight.detach().abs() >= 2.5
    assert not weight.grad[outside].any()
    assert torch.equal(weight.grad[~outside], gradient[~outside])


def test_more_bits_are_closer():
    weight = torch.randn(16, 300) * 0.05
    apart = [float((QUANTIZERS[name](weight, per="row") - weight).square().mean()) for name in LEVELS]
    order = ["binary", "ternary", "2 bits", "4 bits", "8 bits"]
    errors = dict(zip(LEVELS, apart, strict=True))
    assert [errors[name] for name in order] == sorted(errors.values(), reverse=True)
    # The scale of two bits is the closest there is for its codes.
    shown = round_weight(weight, 2, per="row")
    for factor in (0.99, 1.01):
        assert float((shown * factor - weight).square().mean()) > errors["2 bits"]


def test_signs_and_integers_by_hand():
    weight = torch.tensor([[0.5, -1.5, 0.0, 1.0]])
    assert sign_weight(weight).tolist() == [[0.75, -0.75, 0.75, 0.75]]
    # One step is 1.5/7; 0.5 is 2.33 steps and 1.0 is 4.67.
    torch.testing.assert_close(round_weight(weight, 4), torch.tensor([[2.0, -7.0, 0.0, 5.0]]) * 1.5 / 7)
    step = 0.9957 * math.sqrt(math.pi / 2) * 0.75
    codes = torch.tensor([[1.0 if step >= 0.5 else 3.0, -3.0, 1.0, 3.0 if step < 1.0 else 1.0]])
    scale = float((codes * weight).sum() / codes.square().sum())
    torch.testing.assert_close(round_weight(weight, 2), codes * scale)


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zeros_stay_zeros_in_every_precision(name, dtype):
    weight = torch.randn(3, 7).to(dtype)
    weight[1] = 0
    for more in ({"per": "row"}, {"per": "group", "group_size": 3}):
        shown = QUANTIZERS[name](weight, **more)
        assert shown.dtype == dtype
        assert torch.isfinite(shown).all()
        assert not shown[1].any()


@pytest.mark.parametrize("name", QUANTIZERS)
def test_what_is_no_number_is_an_error(name):
    weight = torch.randn(3, 4)
    weight[1, 1] = math.nan
    with pytest.raises(ViewError, match="holds NaN or infinity"):
        QUANTIZERS[name](weight, per="row")


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_neox", "modernbert"])
@pytest.mark.parametrize("sharing", [("matrix", None), ("row", None), ("group", 10)])
def test_codes_times_scales_are_the_baked_weights(name, family, sharing):
    model = zoo.build(family)
    per, size = sharing
    for block in Anatomy.of(model).blocks:
        for matrix in block.matrices.values():
            attach(matrix, VIEWS[name](per, group_size=size))
    stored = {weight.path: weight for weight in quantized_weights(model)}
    assert len(describe(model)) >= len(stored) > 0
    twin = restore(zoo.build(family), describe(model))
    inputs = zoo.inputs_for(family)
    with torch.no_grad():
        assert torch.equal(twin(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
    bake(model)
    for path, weight in stored.items():
        baked = model.get_submodule(path).weight
        assert weight.codes.dtype == torch.int8
        assert torch.equal(weight.weight.mT if weight.transposed else weight.weight, baked), path


def test_a_tied_weight_is_stored_once():
    model = zoo.build_headed("gpt2")
    view = TernaryView("row")
    attach(model.transformer.wte, view)
    attach(model.lm_head, view)
    (weight,) = quantized_weights(model)
    assert weight.path == "transformer.wte"
    assert weight.shared_with == ["lm_head"]


def test_a_mask_below_is_part_of_the_codes_and_one_above_is_refused():
    below = nn.Linear(8, 4)
    scores = torch.rand(4, 8)
    attach(below, MaskView(scores, 0.5))
    attach(below, TernaryView("row"))
    (weight,) = quantized_weights(below)
    assert torch.equal(weight.weight, below.weight)
    assert not weight.codes[scores <= 0.5].any()
    above = nn.Linear(8, 4)
    attach(above, TernaryView("row"))
    attach(above, MaskView(scores, 0.5))
    with pytest.raises(ViewError, match="mask view on top"):
        quantized_weights(above)


def test_a_weight_is_quantized_once():
    linear = nn.Linear(8, 4)
    attach(linear, TernaryView("row"))
    with pytest.raises(ViewError, match="already under a ternary view"):
        attach(linear, BinaryView("row"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ternarize(torch.ones(2, 2), per="group"), "need a size"),
        (lambda: ternarize(torch.ones(2, 2), per="row", group_size=4), "need a size"),
        (lambda: TernaryView("group", group_size=0), "`group_size` is 0"),
        (lambda: IntegerView(3), "`bits` is 3"),
    ],
)
def test_impossible_settings_are_refused(wrong, message):
    with pytest.raises(ViewError, match=message):
        wrong()
