"""Distances of weights and what keeps them short, against the published code (golden file 07b) and slow versions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimformer.errors import ObjectiveError
from slimformer.objectives.losses import frobenius_projection, l2_distance, mars_distance, mars_projection

CASES = {"c0": 1.0, "c1": 0.3}


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=1e-6 * float(expected.abs().max()))


@pytest.fixture(scope="module")
def reference(golden):
    return golden("07b_mars_projection")


@pytest.mark.parametrize(("case", "radius"), CASES.items())
def test_projections_golden(reference, case, radius):
    weight, start = reference[f"{case}.in.W"], reference[f"{case}.in.W0"]
    projected = mars_projection(weight, start, radius)
    close(projected, reference[f"{case}.out.mars_projected"])
    close(mars_projection(weight, torch.zeros_like(weight), radius), reference[f"{case}.out.mars_projected_without_W0"])
    close(frobenius_projection(weight, start, radius), reference[f"{case}.out.frobenius_projected"])
    close(mars_distance(weight, start), reference[f"{case}.out.mars_distance_before"])
    close(mars_distance(projected, start), reference[f"{case}.out.mars_distance_after"])
    close(l2_distance([weight], [start]).square(), reference[f"{case}.out.squared_frobenius_before"])


def test_a_convolution_has_a_row_for_each_output(reference):
    weight, start = reference["conv.in.W"], reference["conv.in.W0"]
    projected = mars_projection(weight.flatten(1), start.flatten(1), reference.meta["conv_lambda"]).view_as(weight)
    close(projected, reference["conv.out.mars_projected"])


def test_a_batch_norm_is_a_matrix_with_one_entry_in_each_row(reference):
    """What stays near the start is what it multiplies by; no family that is supported has one."""
    gamma, start = reference["bn.in.gamma"], reference["bn.in.gamma0"]
    deviation, of_start = ((reference[f"bn.in.{name}"] + 1e-6).sqrt() for name in ("var", "var0"))
    scales, centres = ((gamma / deviation)[:, None], (start / of_start)[:, None])
    projected = mars_projection(scales, centres, reference.meta["bn_lambda"])[:, 0] * deviation
    close(projected, reference["bn.out.gamma_projected"])


def slow_mars(weight, start, radius):
    rows = []
    for row, centre in zip(weight.tolist(), start.tolist(), strict=True):
        length = sum(abs(one - other) for one, other in zip(row, centre, strict=True))
        rows.append([c + (w - c) / max(1, length / radius) for w, c in zip(row, centre, strict=True)])
    return torch.tensor(rows)


def slow_frobenius(weight, start, radius):
    pairs = list(zip(weight.flatten().tolist(), start.flatten().tolist(), strict=True))
    length = math.sqrt(sum((w - c) ** 2 for w, c in pairs))
    return torch.tensor([c + (w - c) / max(1, length / radius) for w, c in pairs]).view_as(weight)


shapes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**31), st.floats(0.01, 10))


@given(shapes)
def test_projections_are_their_formulas_and_end_in_the_ball(drawn):
    rows, columns, seed, radius = drawn
    generator = torch.Generator().manual_seed(seed)
    weight, start = (torch.randn(rows, columns, generator=generator) for _ in range(2))
    near, round_ball = mars_projection(weight, start, radius), frobenius_projection(weight, start, radius)
    torch.testing.assert_close(near, slow_mars(weight, start, radius))
    torch.testing.assert_close(round_ball, slow_frobenius(weight, start, radius))
    assert float(mars_distance(near, start)) <= radius + 1e-5  # sums of numbers around 1 are rounded
    assert float(l2_distance([round_ball], [start])) <= radius + 1e-5


@given(shapes)
def test_what_is_in_the_ball_stays_as_it_is(drawn):
    rows, columns, seed, radius = drawn
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(rows, columns, generator=generator)
    weight = start + torch.randn(rows, columns, generator=generator) * (0.01 * radius / columns)
    for project in (mars_projection, frobenius_projection):
        inside = project(weight, start, radius)
        if float(l2_distance([weight], [start])) < radius and float(mars_distance(weight, start)) < radius:
            assert torch.equal(inside, weight)
        assert torch.equal(project(start, start, radius), start)


def test_the_distance_of_many_tensors_is_that_of_one_long_vector():
    weights, starts = ([torch.randn(3, 4), torch.randn(5), torch.randn(2, 2, 2)] for _ in range(2))
    joined = [torch.cat([each.flatten() for each in some]) for some in (weights, starts)]
    torch.testing.assert_close(l2_distance(weights, starts), (joined[0] - joined[1]).norm())


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ObjectiveError, match=r"weights are \[2, 3\] and their start is \[3, 2\]; both need the same"):
        mars_distance(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(ObjectiveError, match="the radius is 0; give a number above 0"):
        mars_projection(torch.zeros(2, 3), torch.zeros(2, 3), 0)
    with pytest.raises(ObjectiveError, match="no weights to compare"):
        l2_distance([], [])
