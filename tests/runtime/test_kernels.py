"""The compiled kernels against NumPy, and against each other bit by bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.formats import pack
from slimformer.formats.layout import TERNARY
from slimformer.runtime.checkpoint import LAYOUTS, Codes
from slimformer.runtime.native import is_built, kernels

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

#: How the kernels are told of ternary codes.
RULE = Codes(np.zeros((1, 1)), np.ones((1, 1)), 4, 4, TERNARY).rule
ACTIVATIONS = {
    "none": lambda x: x,
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}


def matrix(codes, scales, bias=None, layout=TERNARY, group=None):
    """One for the kernels; scales are one for each row, or [rows, groups]."""
    rows, columns = codes.shape
    table = np.ascontiguousarray(scales.reshape(rows, -1).astype(np.float32))
    packed = Codes(pack(torch.from_numpy(codes), layout).numpy(), table, columns, group or columns, layout)
    made = kernels().Matrix(rows, columns, packed.rule, packed.group)
    made.set_codes(0, packed.codes, packed.scales, packed.group, packed.rule, bias)
    return made


def floats(rows, bias=None):
    made = kernels().Matrix(*rows.shape)
    made.set_floats(0, rows.astype(np.float32), bias)
    return made


def exact(x, codes, scales, bias, group=None):
    """Integer sums of each group in 64 bits, everything after them in 64 bits too."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    steps = np.where(largest > 0, 1 / np.where(largest > 0, largest, 1) * np.float32(127), np.float32(1)).astype(
        np.float32
    )
    whole = np.rint((x * steps).astype(np.float32)).astype(np.int64)
    table, size = scales.reshape(len(codes), -1), group or codes.shape[1]
    total = 0
    for number, first in enumerate(range(0, codes.shape[1], size)):
        part = slice(first, first + size)
        total = total + whole[:, part] @ codes[:, part].T.astype(np.int64) * table[:, number].astype(np.float64)
    return total * np.where(largest > 0, largest.astype(np.float64) / 127, 1) + bias


def same_bits(one, other):
    return one.shape == other.shape and (one.view(np.int32) == other.view(np.int32)).all()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 600),
    outputs=st.integers(1, 70),
    layout=st.sampled_from(list(LAYOUTS.values())),
    group=st.sampled_from([None, None, 16, 48, 128]),
    seed=st.integers(0, 2**32 - 1),
    extreme=st.booleans(),
)
def test_products_are_those_of_integers(rows, inputs, outputs, layout, group, seed, extreme):
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((rows, inputs)).astype(np.float32)
    codes = draw.choice(layout.allowed, (outputs, inputs)).astype(np.int8)
    if extreme:  # every sum as far from 0 as it can be
        x, codes = np.ones_like(x), np.full_like(codes, draw.choice([layout.allowed[0], layout.allowed[-1]]))
    scales = draw.uniform(0.1, 2, (outputs, -(-inputs // (group or inputs)))).astype(np.float32)
    bias = draw.standard_normal(outputs).astype(np.float32)
    weight = matrix(codes, scales, bias, layout, group)
    product = weight.multiply(x)
    expected = exact(x, codes, scales, bias, group)
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 30),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 50),
    layout=st.sampled_from(list(LAYOUTS.values())),
    group=st.sampled_from([None, 32]),
    activation=st.sampled_from(list(ACTIVATIONS)),
    size=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32 - 1),
)
def test_instruction_sets_threads_and_batches_agree_to_the_last_bit(
    rows, inputs, outputs, layout, group, activation, size, seed
):
    draw = np.random.default_rng(seed)
    x = (draw.standard_normal((rows, inputs)) * size).astype(np.float32)
    codes = draw.choice(layout.allowed, (outputs, inputs)).astype(np.int8)
    scales = draw.uniform(0.1, 2, (outputs, -(-inputs // (group or inputs))))
    weight = matrix(codes, scales, draw.standard_normal(outputs).astype(np.float32), layout, group)
    for each in (weight, floats(draw.standard_normal((outputs, inputs)))):
        expected = each.multiply(x, activation, 1, "portable")
        for isa in kernels().instruction_sets():
            for threads in (1, 2):
                assert same_bits(each.multiply(x, activation, threads, isa), expected)
            alone = np.concatenate([each.multiply(row[None], activation, 1, isa) for row in x])
            assert same_bits(alone, expected)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 30), inputs=st.integers(1, 300), outputs=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
def test_products_of_floats(rows, inputs, outputs, seed):
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((rows, inputs)).astype(np.float32)
    rows_of = draw.standard_normal((outputs, inputs)).astype(np.float32)
    bias = draw.standard_normal(outputs).astype(np.float32)
    expected = x.astype(np.float64) @ rows_of.T + bias
    np.testing.assert_allclose(floats(rows_of, bias).multiply(x), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("isa", ["portable", ""])
def test_activations(activation, isa):
    """One output for each value of a grid: with an input of 0, the bias is what is activated."""
    grid = np.concatenate([np.linspace(-12, 12, 4001), [-1000, -100, -1e-6, 0, 1e-6, 100, 1000]]).astype(np.float32)
    weight = matrix(np.ones((len(grid), 1), np.int8), np.ones(len(grid), np.float32), grid)
    values = weight.multiply(np.zeros((1, 1), np.float32), activation, 1, isa)[0]
    expected = ACTIVATIONS[activation](torch.from_numpy(grid).double()).numpy()
    np.testing.assert_allclose(values, expected, rtol=2e-6, atol=3e-7)


def test_rows_of_zeros_and_codes_of_zeros():
    codes = np.zeros((3, 5), np.int8)
    bias = np.array([1, 2, 3], np.float32)
    weight = matrix(codes, np.ones(3, np.float32), bias)
    np.testing.assert_array_equal(weight.multiply(np.zeros((2, 5), np.float32)), [bias, bias])
    np.testing.assert_array_equal(weight.multiply(np.ones((1, 5), np.float32)), [bias])


def test_matrices_that_read_the_same_input_are_one():
    draw = np.random.default_rng(0)
    one, other = (draw.integers(-1, 2, (rows, 37)).astype(np.int8) for rows in (11, 24))
    joined = kernels().Matrix(35, 37, RULE, 37)
    row = 0
    for codes in (one, other):
        packed = pack(torch.from_numpy(codes), TERNARY).numpy()
        joined.set_codes(row, packed, np.ones((len(codes), 1), np.float32), 37, RULE, None)
        row += len(codes)
    x = draw.standard_normal((9, 37)).astype(np.float32)
    apart = [matrix(codes, np.ones(len(codes), np.float32)).multiply(x) for codes in (one, other)]
    assert same_bits(joined.multiply(x), np.concatenate(apart, axis=1))


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_longest_sums_do_not_overflow(name):
    """127 in every input of 2^16, all codes the largest: up to a billion, far beyond 16 bits."""
    inputs, most = 1 << 16, LAYOUTS[name].allowed[-1]
    weight = matrix(np.full((2, inputs), most, np.int8), np.ones(2, np.float32), layout=LAYOUTS[name])
    for isa in kernels().instruction_sets():
        for rows in (1, 13):
            product = weight.multiply(np.ones((rows, inputs), np.float32), "none", 1, isa)
            assert math.isclose(product[0, 0], inputs * most, rel_tol=1e-6)


def test_what_is_no_number_stays_none_and_harms_no_other_row():
    weight = matrix(np.ones((2, 20), np.int8), np.ones(2, np.float32))
    for value in (np.nan, np.inf, -np.inf):
        x = np.ones((7, 20), np.float32)
        x[3, 5] = value
        expected = weight.multiply(np.ones((1, 20), np.float32))[0]
        for isa in kernels().instruction_sets():
            for activation in ACTIVATIONS:
                assert np.isnan(weight.multiply(x, activation, 1, isa)[3]).all()
            product = weight.multiply(x, "none", 1, isa)
            np.testing.assert_array_equal(np.delete(product, 3, axis=0), np.tile(expected, (6, 1)))


@pytest.mark.parametrize("size", [1e-45, 1e-40, 3.6e-37, 1e-35, 1e30])
def test_rows_of_any_size_have_finite_products_of_the_right_size(size):
    weight = matrix(np.ones((2, 4), np.int8), np.ones(2, np.float32))
    x = np.array([[1, 1, 1, 0.5]], np.float32) * np.float32(size)
    for isa in kernels().instruction_sets():
        product = weight.multiply(x, "none", 1, isa)
        assert np.isfinite(product).all()
        # Rows whose largest value is below 1e-36 count as zeros, in each of the four inputs.
        np.testing.assert_allclose(product[0], x.sum(dtype=np.float64), rtol=0.02, atol=4e-36)


PACKED = np.zeros((4, 2), np.uint8) + 0b10101010  # four rows of eight codes, all 0
ONES = np.ones((4, 1), np.float32)
BIAS = np.ones(4, np.float32)


def coded(native, inputs=8):
    return native.Matrix(4, inputs, RULE, inputs)


@pytest.mark.parametrize(
    "call",
    [
        lambda native: native.Matrix(0, 4),
        lambda native: native.Matrix(4, -1),
        lambda native: native.Matrix(4, 1 << 20),
        lambda native: native.Matrix(4, 8, RULE, 0),
        lambda native: native.Matrix(4, 80, RULE, 24),
        lambda native: coded(native, 9).set_codes(0, PACKED, ONES, 9, RULE, None),
        lambda native: coded(native).set_codes(1, PACKED, ONES, 8, RULE, None),
        lambda native: coded(native).set_codes(-1, PACKED, ONES, 8, RULE, None),
        lambda native: coded(native).set_codes(0, PACKED, ONES[:3], 8, RULE, None),
        lambda native: coded(native).set_codes(0, PACKED, ONES, 4, RULE, None),
        lambda native: coded(native).set_codes(0, PACKED, ONES, 0, RULE, None),
        lambda native: coded(native).set_codes(0, PACKED, ONES, 8, RULE, BIAS[:1]),
        lambda native: coded(native).set_codes(0, PACKED * 0, ONES, 8, RULE, None),  # codes of -2
        lambda native: coded(native).set_codes(0, PACKED, ONES, 8, (4, 4, -3, 2, 1, -3, 3), None),
        lambda native: coded(native).set_floats(0, np.ones((4, 8), np.float32), None),
        lambda native: native.Matrix(4, 8).set_codes(0, PACKED, ONES, 8, RULE, None),
        lambda native: native.Matrix(4, 8).set_floats(0, np.ones((4, 7), np.float32), None),
        lambda native: native.Matrix(4, 8).set_floats(1, np.ones((4, 8), np.float32), None),
        lambda native: native.Matrix(4, 8).set_floats(0, np.ones((4, 8), np.float32), BIAS[:1]),
        lambda native: native.Matrix(4, 8).multiply(np.zeros((1, 7), np.float32)),
        lambda native: native.Matrix(4, 8).multiply(np.zeros((1, 8), np.float32), "softmax"),
        lambda native: native.Matrix(4, 8).multiply(np.zeros((1, 8), np.float32), isa="sse"),
        *(
            lambda native, rule=rule: native.Matrix(4, 8, rule, 8)
            for rule in (
                (4, 0, -2, 1, 1, -1, 1),
                (300, 1, -2, 1, 2, -1, 1),
                (4, 5, -2, 1, 1, -1, 1),
                (4, 4, -2, 0, 1, -1, 1),
                (4, 4, -2, 1, 8, -1, 1),
                (4, 4, -2, 1, 1, -3, 1),
                (4, 4, -2, 1, 1, -1, 2),
                (4, 4, -2, 1, 1, 1, 1),
                (4, 4, -3, 2, 1, -2, 3),
                (256, 1, -129, 1, 1, -129, 126),
                (256, 8, -128, 1, 7, -128, 127),  # 256^8 wraps to 0, which is less than 256^7
            )
        ),
    ],
)
def test_shapes_are_checked_before_anything_is_read(call):
    with pytest.raises(kernels().InputError):
        call(kernels())
