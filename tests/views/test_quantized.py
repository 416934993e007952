"""Weights of a few levels beyond the reference's ternary ones, and codes as they are stored."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from slimformer import Anatomy
from slimformer.errors import FormatError, RegistryError, ViewError
from slimformer.formats import find_format
from slimformer.registry import FORMATS
from slimformer.views import (
    MaskView,
    QuantizedView,
    attach,
    bake,
    describe,
    quantize_weight,
    quantized_weights,
    restore,
)
from tests import zoo

LEVELS = {"ternary": 3, "binary": 2, "int2": 4, "int3": 8, "int4": 15, "int8": 255}


#: Those that come with slimformer; a test of the docs may add others to this process.
THERE = set(FORMATS)


def test_every_format_is_tested():
    assert set(LEVELS) == THERE


@pytest.mark.parametrize("name", LEVELS)
@given(seed=st.integers(0, 2**16), rows=st.integers(1, 4), columns=st.integers(1, 23), size=st.integers(1, 25))
@settings(max_examples=40, deadline=None)
def test_a_group_is_quantized_as_if_it_were_alone(name, seed, rows, columns, size):
    torch.manual_seed(seed)
    weight = torch.randn(rows, columns, dtype=torch.float64)
    shown = quantize_weight(weight, name, "group", group_size=size)
    for start in range(0, columns, size):
        alone = quantize_weight(weight[:, start : start + size], name, "row")
        torch.testing.assert_close(shown[:, start : start + size], alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("granularity", ["matrix", "row"])
def test_levels_scales_and_gradients(name, granularity):
    weight = torch.randn(6, 400)
    weight[2, :5] = torch.tensor([2.5, -2.5, 3.0, -9.0, 2.4999])
    weight.requires_grad_()
    shown = quantize_weight(weight, name, granularity)
    for unit in [shown] if granularity == "matrix" else shown:
        assert len(unit.unique()) <= LEVELS[name]
    gradient = torch.randn(6, 400)
    shown.backward(gradient)
    outside = weight.detach().abs() >= 2.5
    assert not weight.grad[outside].any()
    assert torch.equal(weight.grad[~outside], gradient[~outside])


def test_more_bits_are_closer():
    weight = torch.randn(16, 300) * 0.05
    errors = {name: float((quantize_weight(weight, name) - weight).square().mean()) for name in LEVELS}
    order = ["binary", "ternary", "int2", "int3", "int4", "int8"]
    assert [errors[name] for name in order] == sorted(errors.values(), reverse=True)
    # The scales of two and three bits are the closest there are for their codes.
    for name in ("int2", "int3"):
        shown = quantize_weight(weight, name)
        for factor in (0.99, 1.01):
            assert float((shown * factor - weight).square().mean()) > errors[name]


@pytest.mark.parametrize(("name", "expected"), [("binary", 0.3634), ("int2", 0.1188), ("int3", 0.03744)])
def test_errors_are_those_of_the_best_even_levels_for_a_normal_distribution(name, expected):
    """Max 1960, table II; what the step misses is less than the weights' own variation."""
    weight = torch.randn(40, 20_000)
    error = (quantize_weight(weight, name, clip=None) - weight).square().mean()
    assert float(error) == pytest.approx(expected, rel=0.01)


def test_signs_and_integers_by_hand():
    weight = torch.tensor([[0.5, -1.5, 0.0, 1.0]])
    assert quantize_weight(weight, "binary").tolist() == [[0.75, -0.75, 0.75, 0.75]]
    # One step is 1.5/7; 0.5 is 2.33 steps and 1.0 is 4.67.
    torch.testing.assert_close(quantize_weight(weight, "int4"), torch.tensor([[2.0, -7.0, 0.0, 5.0]]) * 1.5 / 7)
    step = 0.9957 * math.sqrt(math.pi / 2) * 0.75
    codes = torch.tensor([[1.0 if step >= 0.5 else 3.0, -3.0, 1.0, 3.0 if step < 1.0 else 1.0]])
    scale = float((codes * weight).sum() / codes.square().sum())
    torch.testing.assert_close(quantize_weight(weight, "int2"), codes * scale)


@given(seed=st.integers(0, 2**16), columns=st.integers(1, 40), scale=st.floats(1e-3, 5))
@settings(max_examples=60, deadline=None)
def test_three_bits_by_hand(seed, columns, scale):
    """Each weight gets the odd code of the interval it lies in, and the scale is the one of least squares."""
    torch.manual_seed(seed)
    weight = torch.randn(1, columns, dtype=torch.float64) * scale
    codes, scales = QuantizedView("int3", clip=None).codes(weight)
    row = weight[0].tolist()
    step = 0.5860 * math.sqrt(math.pi / 2) * sum(map(abs, row)) / columns
    expected = [math.copysign(2 * min(3, math.ceil(abs(w) / step) - 1) + 1, w) for w in row]
    assert codes[0].tolist() == expected
    least = sum(c * w for c, w in zip(expected, row, strict=True)) / sum(c * c for c in expected)
    assert float(scales) == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zeros_stay_zeros_in_every_precision(name, dtype):
    weight = torch.randn(3, 7).to(dtype)
    weight[1] = 0
    for more in ({"granularity": "row"}, {"granularity": "group", "group_size": 3}):
        shown = quantize_weight(weight, name, **more)
        assert shown.dtype == dtype
        assert torch.isfinite(shown).all()
        assert not shown[1].any()


@pytest.mark.parametrize("name", LEVELS)
def test_what_is_no_number_is_an_error(name):
    weight = torch.randn(3, 4)
    weight[1, 1] = math.nan
    with pytest.raises(FormatError, match="holds NaN or infinity"):
        quantize_weight(weight, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_neox", "modernbert"])
@pytest.mark.parametrize("granularity", [("matrix", None), ("row", None), ("group", 10)], ids=str)
def test_codes_times_scales_are_the_baked_weights(name, family, granularity):
    model = zoo.build(family)
    for block in Anatomy.of(model).blocks:
        for matrix in block.matrices.values():
            attach(matrix, QuantizedView(name, *granularity))
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
        assert set(weight.codes.unique().tolist()) <= set(find_format(name).codes)
        assert torch.equal(weight.weight.mT if weight.transposed else weight.weight, baked), path


def test_a_tied_weight_is_stored_once():
    model = zoo.build_headed("gpt2")
    view = QuantizedView("ternary")
    attach(model.transformer.wte, view)
    attach(model.lm_head, view)
    (weight,) = quantized_weights(model)
    assert weight.path == "transformer.wte"
    assert weight.shared_with == ["lm_head"]


def test_a_mask_below_is_part_of_the_codes_and_one_above_is_refused():
    below = nn.Linear(8, 4)
    scores = torch.rand(4, 8)
    attach(below, MaskView(scores, 0.5))
    attach(below, QuantizedView("ternary"))
    (weight,) = quantized_weights(below)
    assert torch.equal(weight.weight, below.weight)
    assert not weight.codes[scores <= 0.5].any()
    above = nn.Linear(8, 4)
    attach(above, QuantizedView("ternary"))
    attach(above, MaskView(scores, 0.5))
    with pytest.raises(ViewError, match="mask view on top"):
        quantized_weights(above)


def test_a_weight_is_quantized_once():
    linear = nn.Linear(8, 4)
    attach(linear, QuantizedView("ternary"))
    with pytest.raises(ViewError, match="the weight is already ternary"):
        attach(linear, QuantizedView("binary"))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: quantize_weight(torch.ones(2, 2), "int4", "group"), FormatError, "need a size"),
        (lambda: quantize_weight(torch.ones(2, 2), "int4", "row", group_size=4), FormatError, "need a size"),
        (lambda: QuantizedView("ternary", "group", 0), FormatError, "`group_size` is 0"),
        (lambda: QuantizedView("int5"), RegistryError, "there is no format `int5`"),
    ],
)
def test_impossible_settings_are_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong()
