"""Products of several tasks with one matrix of codes, each with its own weights dropped, against whole integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.formats.layout import BINARY, INT2, TERNARY
from slimformer.runtime.checkpoint import LAYOUTS
from slimformer.runtime.native import is_built, kernels
from tests.runtime.test_kernels import exact, floats, matrix, same_bits

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

#: Layouts of formats with a code for a weight that is dropped.
MASKABLE = [layout for layout in LAYOUTS.values() if 0 in layout.allowed]
SHAPES = {
    "tasks": st.integers(1, 5),
    "inputs": st.one_of(st.integers(1, 100), st.integers(500, 700)),
    "outputs": st.integers(1, 70),
    "layout": st.sampled_from(MASKABLE),
    "group": st.sampled_from([None, None, 16, 48]),
    "seed": st.integers(0, 2**32 - 1),
}


class Drawn:
    """Rows of some tasks, a matrix of codes, and what each task keeps of it."""

    def __init__(self, tasks, inputs, outputs, layout, group, seed):
        self.layout, self.group = layout, group
        self.draw = draw = np.random.default_rng(seed)
        self.starts = np.concatenate([[0], np.cumsum(draw.choice([0, 1, 2, 5, 6, 7, 13, 300], tasks))]).astype(np.int32)
        self.x = draw.standard_normal((self.starts[-1], inputs)).astype(np.float32)
        self.codes = draw.choice(np.array(layout.allowed), (outputs, inputs)).astype(np.int8)
        self.scales = draw.uniform(0.1, 2, (outputs, -(-inputs // (group or inputs)))).astype(np.float32)
        self.bias = draw.standard_normal(outputs).astype(np.float32)
        shares = draw.choice([0.0, 0.003, 0.05, 0.5, 0.97, 1.0], tasks)
        self.kept = [
            None if not share else (draw.random((outputs, inputs)) >= share).astype(np.uint8) for share in shares
        ]
        self.matrix = self.of_codes(self.codes)

    def of_codes(self, codes):
        return matrix(codes, self.scales, self.bias, self.layout, self.group)

    def rows(self, task):
        return self.x[self.starts[task] : self.starts[task + 1]]

    def masked(self, task):
        return self.codes if self.kept[task] is None else self.codes * self.kept[task].astype(np.int8)

    def product(self, activation="none", threads=1, isa=""):
        masks = [None if kept is None else kernels().Mask(kept) for kept in self.kept]
        return kernels().multiply_tasks(self.matrix, self.x, self.starts, masks, activation, threads, isa)


@settings(max_examples=60, deadline=None)
@given(**SHAPES)
def test_products_are_those_of_integers_without_what_is_dropped(**shape):
    drawn = Drawn(**shape)
    product = drawn.product()
    for task in range(len(drawn.kept)):
        expected = exact(drawn.rows(task), drawn.masked(task), drawn.scales, drawn.bias, drawn.group)
        found = product[drawn.starts[task] : drawn.starts[task + 1]]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(initial=1))


@settings(max_examples=40, deadline=None)
@given(activation=st.sampled_from(["none", "gelu", "tanh"]), **SHAPES)
def test_they_have_the_bits_of_the_masked_matrix_on_every_instruction_set(activation, **shape):
    drawn = Drawn(**shape)
    alone = [
        drawn.of_codes(drawn.masked(task)).multiply(drawn.rows(task), activation, 1, "portable")
        for task in range(len(drawn.kept))
    ]
    expected = np.concatenate(alone)
    for isa in kernels().instruction_sets():
        for threads in (1, 2):
            assert same_bits(drawn.product(activation, threads, isa), expected)


def test_the_largest_sums_do_not_overflow():
    for layout in MASKABLE:
        drawn = Drawn(2, 4096, 17, layout, None, 0)
        drawn.x = np.ones_like(drawn.x)
        drawn.codes[:] = layout.allowed[0]
        drawn.matrix = drawn.of_codes(drawn.codes)
        drawn.kept = [(drawn.draw.random(drawn.codes.shape) >= share).astype(np.uint8) for share in (0.05, 0.9)]
        for isa in kernels().instruction_sets():
            product = drawn.product(isa=isa)
            for task in range(2):
                expected = exact(drawn.rows(task), drawn.masked(task), drawn.scales, drawn.bias)
                found = product[drawn.starts[task] : drawn.starts[task + 1]]
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


def test_floats_are_multiplied_by_the_same_call():
    draw = np.random.default_rng(0)
    weight, x = draw.standard_normal((33, 40)).astype(np.float32), draw.standard_normal((9, 40)).astype(np.float32)
    kept = (draw.random(weight.shape) >= 0.1).astype(np.uint8)
    starts = np.array([0, 4, 9], np.int32)
    product = kernels().multiply_tasks(floats(weight), x, starts, [None, kernels().Mask(kept)])
    np.testing.assert_allclose(product[:4], x[:4] @ weight.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(product[4:], x[4:] @ (weight * kept).T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((3, 7), np.float32)}, "inputs of another width"),
        ({"starts": np.array([0, 2], np.int32)}, "a first row for each task"),
        ({"starts": np.array([1, 3], np.int32)}, "a first row for each task"),
        ({"starts": np.array([0, 4, 3], np.int32), "kept": (4, 4)}, "tasks one after the other"),
        ({"kept": (5,)}, "a mask of 5 x 8 for a matrix of 4 x 8"),
        ({"layout": BINARY}, "codes none of which is 0"),
        ({"layout": INT2}, "codes none of which is 0"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    layout = change.get("layout", TERNARY)
    coded = matrix(np.full((4, 8), layout.allowed[-1], np.int8), np.ones(4), layout=layout)
    masks = [kernels().Mask(np.zeros((rows, 8), np.uint8)) for rows in change.get("kept", (4,))]
    x, starts = change.get("x", np.zeros((3, 8), np.float32)), change.get("starts", np.array([0, 3], np.int32))
    with pytest.raises(ValueError, match=message):
        kernels().multiply_tasks(coded, x, starts, masks)
