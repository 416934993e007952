"""Milliseconds of each block at each size: how times of rounds become costs; that a clock is right is not tested."""

from __future__ import annotations

import pytest

from slimformer.errors import SizeError
from slimformer.sizes import Budget, Costs, allocate, make_elastic, measure_latency, name_sizes
from slimformer.sizes.latency import in_milliseconds
from tests import zoo

SMALL, HALF, WHOLE = SIZES = name_sizes([0.25, 0.5, 1])


def test_costs_are_median_ratios_to_the_largest_size_of_the_same_round():
    """The second round ran at half the speed and in the third one block waited: neither changes a ratio."""
    rounds = [
        {SMALL: (1.0, 2.0, 7.0), HALF: (2.0, 4.0, 7.0), WHOLE: (4.0, 8.0, 7.0)},
        {SMALL: (2.0, 4.0, 14.0), HALF: (4.0, 8.0, 14.0), WHOLE: (8.0, 16.0, 14.0)},
        {SMALL: (90.0, 2.0, 7.0), HALF: (2.0, 4.0, 7.0), WHOLE: (4.0, 8.0, 7.0)},
    ]
    costs = in_milliseconds(SIZES, rounds)
    assert costs == Costs("milliseconds", 7.0, ({SMALL: 1, HALF: 2, WHOLE: 4}, {SMALL: 2, HALF: 4, WHOLE: 8}))


def test_a_larger_size_is_never_cheaper():
    costs = in_milliseconds(SIZES, [{SMALL: (3.0, 1.0), HALF: (2.0, 1.0), WHOLE: (4.0, 1.0)}])
    assert costs.blocks == ({SMALL: 3.0, HALF: 3.0, WHOLE: 4.0},)


@pytest.mark.parametrize("family", ["bert", "vit", "llama"])
def test_a_budget_of_milliseconds_is_kept_to(family):
    model = zoo.build_headed(family)
    elastic = make_elastic(model, SIZES)
    costs = measure_latency(model, length=8, rounds=3)
    assert [list(row) for row in costs.blocks] == [list(SIZES)] * 3
    assert all(0 < row[SMALL] <= row[HALF] <= row[WHOLE] for row in costs.blocks)
    limit = costs.total(elastic.allocation("M"))
    assert costs.total(allocate(elastic, Budget(costs, limit))) <= limit
    with pytest.raises(SizeError, match="no size keeps to 1e-06 milliseconds for a text or an image of"):
        allocate(elastic, Budget(costs, 1e-6))
