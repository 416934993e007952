"""Search: every allocation scored, the front of the best, and evolution that finds what enumeration finds."""

from __future__ import annotations

import math

import pytest

from slimformer.errors import SizeError
from slimformer.sizes import (
    Allocation,
    Budget,
    Costs,
    Predictor,
    Scored,
    count_allocations,
    enumerate_allocations,
    evolve,
    make_elastic,
    name_sizes,
    pareto_front,
    sample_allocations,
    score,
)
from tests import zoo


@pytest.fixture(scope="module")
def model():
    built = zoo.build("llama")
    make_elastic(built, name_sizes([0.25, 0.5, 1]), skip=True)
    return built


@pytest.fixture(scope="module")
def elastic(model):
    from slimformer.sizes import Elastic

    return Elastic.of(model)


def loss_of(allocation: Allocation) -> float:
    """Later blocks matter more, and blocks that are all small lose more than each alone."""
    shares = [0.0 if size is None else size.neurons for size in allocation]
    return sum((index + 1) * (1 - share) for index, share in enumerate(shares)) - 2 * math.log(sum(shares))


def test_every_allocation_is_there_once(elastic):
    every = list(enumerate_allocations(elastic))
    assert len(every) == len(set(every)) == count_allocations(elastic) == 4**3 - 1
    assert all(any(allocation) for allocation in every)
    for allocation in every:
        elastic.allocation(allocation)


def test_samples_are_different_and_the_same_again(elastic):
    drawn = sample_allocations(elastic, 20, seed=1)
    assert len(set(drawn)) == 20
    assert drawn == sample_allocations(elastic, 20, seed=1) != sample_allocations(elastic, 20, seed=2)
    assert len(sample_allocations(elastic, 1000)) == 27
    assert None in {size for allocation in sample_allocations(elastic, 30, skip=True) for size in allocation}


def test_scores_are_measured_at_each_allocation(elastic):
    def neurons() -> float:
        return float(sum(block.neurons.value for block in elastic.blocks))

    scored = score(elastic, [elastic.allocation(size) for size in ("S", "M", "S,M,XL")], neurons)
    assert [each.loss for each in scored] == [48, 96, 112]


def test_nothing_is_cheaper_and_better_than_the_front(model, elastic):
    costs = Costs.of(model)
    scored = [Scored(allocation, loss_of(allocation)) for allocation in enumerate_allocations(elastic)]
    front = pareto_front(scored, costs)
    assert [point.cost for point in front] == sorted({point.cost for point in front})
    assert [point.loss for point in front] == sorted({point.loss for point in front}, reverse=True)
    on_front = {point.allocation for point in front}
    for each in scored:
        cost = costs.total(each.allocation)
        beaten = any(point.cost <= cost and point.loss <= each.loss for point in front)
        assert beaten
        if each.allocation in on_front:
            assert not any(costs.total(o.allocation) < cost and o.loss < each.loss for o in scored)


def test_a_predictor_is_told_by_pairs_it_has_not_seen(elastic):
    scored = [Scored(allocation, loss_of(allocation)) for allocation in sample_allocations(elastic, 27)]
    predictor = Predictor.fit(elastic, scored)
    assert predictor.correlation > 0.9
    assert predictor.error < 0.05
    assert predictor(elastic.largest) == pytest.approx(loss_of(elastic.largest), abs=0.3)
    with pytest.raises(SizeError, match="at least 10 measured allocations, and got 3"):
        Predictor.fit(elastic, scored[:3])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_evolution_finds_the_best_within_the_budget(model, elastic, share):
    costs = Costs.of(model)
    least, most = costs.total(elastic.allocation("S")), costs.total(elastic.largest)
    budget = Budget(costs, least + share * (most - least))
    found = evolve(elastic, budget, loss_of, population=20, generations=10)
    assert budget.holds(found)
    whole = [each for each in enumerate_allocations(elastic) if None not in each.blocks and budget.holds(each)]
    assert loss_of(found) == pytest.approx(min(loss_of(allocation) for allocation in whole))
    assert found == evolve(elastic, budget, loss_of, population=20, generations=10)


def test_evolution_refuses_a_budget_below_the_smallest(model, elastic):
    with pytest.raises(SizeError, match="no size keeps to"):
        evolve(elastic, Budget(Costs.of(model), 5), loss_of)
