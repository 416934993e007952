"""Error compensation against a slow version that inverts the Hessian anew for every column, and against rounding."""

from __future__ import annotations

import pytest
import torch

from slimformer.errors import FormatError
from slimformer.formats import Granularity, find_format
from slimformer.methods.quantize.post_training.compensation import (
    compensate,
    damped_diagonal,
    fit_scales,
    inverse_factor,
)
from slimformer.registry import FORMATS

GRANULARITIES = [Granularity("row"), Granularity("group", 16), Granularity("matrix")]


def matrix(rows=12, columns=40, inputs=200):
    """A matrix, and inputs that depend on one another and differ in size, as those of a Transformer do."""
    weight = torch.randn(rows, columns)
    mixed = torch.randn(inputs, columns // 2) @ torch.randn(columns // 2, columns) + 0.3 * torch.randn(inputs, columns)
    return weight, mixed * torch.linspace(0.2, 3, columns)


def slow(weight, hessian, number_format, granularity, damping):
    """Optimal Brain quantization in a given order: eq. 2 of arXiv 2210.17323, the inverse found again each time."""
    columns = weight.shape[1]
    importance = damped_diagonal(hessian.diagonal(), damping)
    spread = granularity.spread(fit_scales(weight, importance, number_format, granularity), columns)
    spread = spread.expand_as(weight).double()
    damped = hessian.double() + damping * hessian.diagonal().double().mean() * torch.eye(columns, dtype=torch.double)
    rest, codes = weight.double().clone(), torch.zeros_like(weight)
    left = hessian.diagonal().argsort(descending=True, stable=True).tolist()
    while left:
        first = left[0]
        inverse = torch.linalg.inv(damped[left][:, left])
        codes[:, first] = number_format.nearest(rest[:, first], spread[:, first]).float()
        error = rest[:, first] - number_format.decode(codes[:, first], torch.double) * spread[:, first]
        rest[:, left] -= (error / inverse[0, 0])[:, None] * inverse[0]
        left = left[1:]
    return codes.to(torch.int8)


@pytest.mark.parametrize("granularity", GRANULARITIES, ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["ternary", "int3", "int4"])
def test_codes_are_those_of_the_slow_version(name, granularity):
    weight, inputs = matrix()
    hessian = inputs.mT @ inputs / len(inputs)
    codes, scales = compensate(weight, hessian, find_format(name), granularity)
    expected = slow(weight, hessian, find_format(name), granularity, 0.01)
    # A weight in the very middle of two levels may fall to either side, and others follow it.
    assert (codes == expected).float().mean() > 0.99
    assert scales.shape == find_format(name).quantize(weight, granularity)[1].shape


@pytest.mark.parametrize("granularity", GRANULARITIES, ids=lambda each: each.name)
@pytest.mark.parametrize("name", list(FORMATS))
def test_outputs_stay_closer_than_with_rounding(name, granularity):
    weight, inputs = matrix(columns=300, inputs=900)  # several blocks of columns
    number_format = find_format(name)

    def error(codes, scales):
        return float(
            ((weight - number_format.dequantize(codes, scales, granularity.group_size)) @ inputs.mT).square().sum()
        )

    compensated = error(*compensate(weight, inputs.mT @ inputs, number_format, granularity))
    assert compensated < 0.7 * error(*number_format.quantize(weight, granularity))


@pytest.mark.parametrize("name", list(FORMATS))
def test_nearest_codes_are_those_whose_levels_are_closest(name):
    number_format = find_format(name)
    weight, scales = torch.randn(7, 50) * 3, torch.rand(7, 1) + 0.1
    codes = torch.tensor(list(number_format.codes), dtype=torch.float)
    levels = number_format.decode(codes, torch.float)
    expected = codes[(weight[..., None] - levels * scales[..., None]).abs().argmin(dim=-1)]
    found = number_format.nearest(weight, scales)
    assert torch.equal(found, expected)
    assert torch.equal(number_format.nearest(torch.zeros(1, 1), torch.zeros(1, 1)) * 0, torch.zeros(1, 1))


def test_levels_that_are_no_codes_are_found_too():
    from dataclasses import replace

    skewed = replace(find_format("int2"), values=(5.0, -1.0, 0.0, 2.0))  # of codes -3, -1, 1, 3
    found = skewed.nearest(torch.tensor([[4.0, -3.0, 0.4, 1.2]]), torch.ones(1, 1))
    assert found.tolist() == [[-3, -1, 1, 3]]


def test_scales_are_no_worse_than_the_formats_own():
    weight, inputs = matrix()
    importance = inputs.square().mean(dim=0)
    for granularity in GRANULARITIES:
        number_format = find_format("int4")
        own = number_format.quantize(weight, granularity)[1]
        fitted = fit_scales(weight, importance, number_format, granularity)
        errors = []
        for scales in (own, fitted):
            spread = granularity.spread(scales, weight.shape[1])
            rounded = number_format.nearest(weight, spread) * spread
            errors.append(float(((weight - rounded).square() * importance).sum()))
        assert errors[1] < errors[0]


@pytest.mark.parametrize(
    ("granularity", "dead"),
    [(Granularity("group", 16), slice(16, 32)), *((each, slice(0, 48)) for each in GRANULARITIES)],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_a_scale_of_inputs_that_never_occur_is_as_without_calibration(granularity, dead):
    weight, inputs = matrix(columns=48)
    inputs[:, dead] = 0
    codes, scales = compensate(weight, inputs.mT @ inputs, find_format("int8"), granularity)
    spread = granularity.spread(scales, 48).expand_as(weight)
    off = (codes * spread - weight).abs()[:, dead]
    # At the ends of the levels a scale may cut off a little.
    assert bool((off <= 4 * spread[:, dead]).all())


def test_the_factor_is_that_of_the_inverse():
    _, inputs = matrix()
    hessian = inputs.mT @ inputs
    factor = inverse_factor(hessian, 0.01)
    damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(40)
    assert torch.allclose(factor.mT @ factor @ damped, torch.eye(40), atol=1e-3)
    assert torch.equal(factor, factor.triu())
    with pytest.raises(FormatError, match="NaN or infinity"):
        inverse_factor(hessian * float("nan"), 0.01)
