"""Sizes, allocations, budgets and losses that are none are refused by errors of ours."""

from __future__ import annotations

from typing import Any

import pytest

from slimformer.errors import AnatomyError, SizeError
from slimformer.sizes import Allocation, Budget, Costs, Size, allocate, make_elastic, measure_sensitivity, name_sizes
from tests import zoo

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def model() -> Any:
    built = zoo.build("bert")
    make_elastic(built)
    return built


@pytest.fixture(scope="module")
def elastic(model: Any) -> Any:
    from slimformer.sizes import Elastic

    return Elastic.of(model)


@pytest.mark.parametrize(
    "size", ["Z", "", ",", NAN, INF, 0, -1, None, [], {}, {"S": 1}, object(), b"S", 10**400, [None] * 3]
)
def test_what_names_no_size_is_refused(size, elastic):
    with pytest.raises(SizeError), elastic.at(size):
        pass


@pytest.mark.parametrize("name", ["", " ", "0", "a,b", 5, None])
def test_a_size_has_a_name_that_can_be_asked_for(name):
    with pytest.raises(SizeError, match="a size is called"):
        Size(name, 1.0)


@pytest.mark.parametrize("share", [0, -1, NAN, INF, "x", None, 1.5])
@pytest.mark.parametrize("what", ["neurons", "heads", "depth"])
def test_a_share_lies_above_zero(what, share):
    with pytest.raises(SizeError, match=f"`{what}` of a size is"):
        Size(**{"name": "S", "neurons": 1.0, what: share})


@pytest.mark.parametrize("blocks", [("S", "S"), [None], "S", 5])
def test_an_allocation_holds_sizes(blocks):
    with pytest.raises(SizeError, match="an allocation has the blocks"):
        Allocation(blocks)


@pytest.mark.parametrize("shares", [None, 5, "x", ["x"], [None, 1]])
def test_shares_are_a_list_of_numbers(shares):
    with pytest.raises(SizeError, match="`neurons` is"):
        name_sizes(shares)


@pytest.mark.parametrize("limit", [0, -1, NAN, -INF, None, "x", True, [5]])
def test_a_budget_has_a_limit_above_zero(limit, model):
    with pytest.raises(SizeError, match="a budget has the limit"):
        Budget(Costs.of(model), limit)


@pytest.mark.parametrize("order", ["x", None, 5, []])
def test_an_order_is_one_of_those_there_are(order, model, elastic):
    with pytest.raises(SizeError, match="there is no order"):
        allocate(elastic, Budget(Costs.of(model), 10**9), order=order)


def test_a_budget_counts_the_same_sizes(elastic):
    other = zoo.build("bert")
    make_elastic(other, [0.5, 1.0])
    with pytest.raises(SizeError, match="a model with other sizes"):
        allocate(elastic, Budget(Costs.of(other), 10**9))
    with pytest.raises(SizeError, match="the budget is `5`"):
        allocate(elastic, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", [NAN, INF, "x", None])
def test_losses_that_cannot_be_compared_are_refused(loss, model, elastic):
    table = [dict.fromkeys(elastic.sizes, loss)] * len(elastic.blocks)
    with pytest.raises(SizeError, match="the sensitivity of block 0 is"):
        allocate(elastic, Budget(Costs.of(model), 10**9), sensitivity=table)
    with pytest.raises(SizeError, match="which is no finite number"):
        measure_sensitivity(elastic, lambda: loss)


@pytest.mark.parametrize("table", [[], [{}] * 3, "x", 5, [None] * 3])
def test_a_sensitivity_has_every_block_and_size(table, model, elastic):
    with pytest.raises(SizeError, match="the sensitivity"):
        allocate(elastic, Budget(Costs.of(model), 10**9), sensitivity=table)


@pytest.mark.parametrize("sizes", ["0.5,1", 0.5, ["half", "all"], [0.5, None], {0.5: 1}], ids=str)
def test_sizes_that_are_no_list_of_shares_are_refused(sizes):
    with pytest.raises(SizeError, match=r"give a list of shares, rising to 1|shares are numbers"):
        make_elastic(zoo.build("bert"), sizes)


def test_a_name_is_no_model_to_make_elastic():
    with pytest.raises(AnatomyError, match="`minilm` is no model"):
        make_elastic("minilm")  # type: ignore[arg-type]


def test_very_many_sizes_are_refused():
    shares = [(number + 1) / 65 for number in range(65)]
    with pytest.raises(SizeError, match="there are 65 sizes; give 64 at most"):
        name_sizes(shares)
    assert len(name_sizes(shares[1:])) == 64
