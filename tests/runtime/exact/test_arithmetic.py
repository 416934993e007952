"""The arithmetic that encoders are compared by: against fractions and loops, and the kernels against it bit by bit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.runtime.checkpoint import LAYOUTS
from slimformer.runtime.native import is_built, kernels
from slimformer.views import Rounding
from tests.runtime.exact.arithmetic import ACTIVATIONS, LANES, LARGEST, chain, codes_product, fma, rounded, total
from tests.runtime.test_kernels import floats, matrix, same_bits

needs_kernels = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")


def nearest(exact):
    """A fraction as the nearest float of 32 bits, ties to even."""
    if exact == 0:
        return np.float32(0)
    highest = exact.numerator.bit_length() - exact.denominator.bit_length()
    while abs(exact) >= Fraction(2) ** (highest + 1):
        highest += 1
    while abs(exact) < Fraction(2) ** highest:
        highest -= 1
    last = Fraction(2) ** max(highest - 23, -149)
    return np.float32(float(round(exact / last) * last))


def fused(a, b, c):
    return nearest(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


FLOATS = st.floats(width=32, min_value=-(2.0**60), max_value=2.0**60)


@settings(max_examples=400, deadline=None)
@given(FLOATS, FLOATS, FLOATS)
def test_a_fused_product_is_rounded_once(a, b, c):
    assert fma(np.float32(a), np.float32(b), np.float32(c)) == fused(a, b, c)


def test_sums_that_64_bits_round_twice():
    draw = np.random.default_rng(0)
    different = 0
    for _ in range(2000):
        # c ends in a bit, and the product lies a little beside half of it.
        c = np.float32(1 + draw.integers(2**23) * 2.0**-23)
        half = 2.0**-24 * (1 if draw.random() < 0.5 else -1)
        a = np.float32(1 + draw.integers(1, 2**12) * 2.0**-23)
        b = np.float32(half / float(a))
        expected = fused(a, b, c)
        assert fma(a, b, c) == expected
        different += np.float32(float(a) * float(b) + float(c)) != expected
    assert different > 0


def test_numbers_near_the_smallest_and_no_numbers():
    draw = np.random.default_rng(0)
    for exponent in range(-149, -100, 3):
        for a, b, c in draw.uniform(-2, 2, (20, 3)).astype(np.float32):
            b, c = b * np.float32(2.0 ** (exponent // 2)), np.ldexp(c, exponent)
            a = np.ldexp(a, exponent - exponent // 2)
            assert fma(a, b, c) == fused(a, b, c)
    infinite = np.float32(np.inf)
    assert fma(infinite, np.float32(1), np.float32(-1)) == infinite
    assert np.isnan(fma(infinite, np.float32(1), -infinite))
    assert np.signbit(fma(np.float32(0), np.float32(-1), np.float32(-0.0)))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 48, 100])
def test_sums_go_through_lanes_and_a_tree(length):
    x = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    lanes = [np.float32(0)] * LANES
    for i, each in enumerate(x):
        lanes[i % LANES] = lanes[i % LANES] + each
    for half in (8, 4, 2, 1):
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    assert total(x) == lanes[0]
    assert total(np.stack([x, -x])).tolist() == [lanes[0], -lanes[0]]


def values():
    """Floats of every size up to 80, of both signs, and around the ends of polynomials."""
    sizes = np.concatenate([np.geomspace(1e-38, 80, 4001), np.linspace(0, 6, 3001)]).astype(np.float32)
    ends = np.array([0.5, 1, 4, math.sqrt(2), 4 * math.sqrt(2), 17.3, 43.6], np.float32)
    near = [np.nextafter(ends, np.float32(toward)) for toward in (-np.inf, np.inf)]
    all_sizes = np.concatenate([sizes, ends, *near])
    return np.concatenate([all_sizes, -all_sizes]) + np.float32(0)  # a product with its bias is never -0


@needs_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_have_the_bits_of_the_reference(activation):
    x = values()
    expected = ACTIVATIONS[activation](x[:, None])
    for isa in kernels().instruction_sets():
        assert same_bits(floats(np.ones((1, 1))).multiply(x[:, None], activation, 1, isa), expected)


def middles():
    """Rows in which all but the largest value lie in the middle of two codes, or as near as there is a float."""
    draw = np.random.default_rng(0)
    largest = draw.uniform(0.5, 2, 500).astype(np.float32)
    halves = (draw.integers(-127, 127, (500, 24)) + 0.5) / 127 * largest[:, None].astype(np.float64)
    return np.concatenate([largest[:, None], halves.astype(np.float32)], axis=1)


def test_values_in_the_middle_of_two_codes_become_what_torch_makes_of_them():
    x = middles()
    codes, steps = rounded(x)
    assert (codes != np.rint(x * (LARGEST / x[:, :1]))).any()  # where 127 is divided in one go
    in_torch = Rounding()(torch.from_numpy(x)).numpy() / steps[:, None]
    assert np.array_equal(np.rint(in_torch), codes)


@needs_kernels
def test_values_in_the_middle_of_two_codes_have_the_bits_of_the_reference():
    x, codes = middles(), np.random.default_rng(1).integers(-1, 2, (16, 25)).astype(np.int8)
    scales, bias = np.ones((16, 1), np.float32), np.zeros(16, np.float32)
    expected = codes_product(x, codes.astype(np.int64), scales, 25, bias)
    for isa in kernels().instruction_sets():
        assert same_bits(matrix(codes, scales, bias).multiply(x, "none", 1, isa), expected)


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 50),
    layout=st.sampled_from(list(LAYOUTS.values())),
    group=st.sampled_from([None, 16, 48]),
    activation=st.sampled_from(list(ACTIVATIONS)),
    size=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_have_the_bits_of_the_reference(rows, inputs, outputs, layout, group, activation, size, seed):
    draw = np.random.default_rng(seed)
    x = (draw.standard_normal((rows, inputs)) * size).astype(np.float32)
    codes = draw.choice(layout.allowed, (outputs, inputs)).astype(np.int8)
    group = inputs if group is None else group
    scales = draw.uniform(0.1, 2, (outputs, -(-inputs // group))).astype(np.float32) / np.float32(size)
    bias = draw.standard_normal(outputs).astype(np.float32)
    packed = codes_product(x, codes.astype(np.int64), scales, group, bias)
    weights = draw.standard_normal((outputs, inputs)).astype(np.float32)
    plain = chain(x, weights) + bias
    for made, expected in ((matrix(codes, scales, bias, layout, group), packed), (floats(weights, bias), plain)):
        with np.errstate(over="ignore"):  # of x³ where x is large
            activated = ACTIVATIONS[activation](expected)
        for isa in kernels().instruction_sets():
            assert same_bits(made.multiply(x, activation, 1, isa), activated)
