"""Mix'n'Match: the paper's picks, budgets that are kept to and used up, and sensitivity."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from slimformer.artifact.provenance import stored_tensors
from slimformer.errors import SizeError
from slimformer.sizes import (
    Allocation,
    Budget,
    Costs,
    Elastic,
    allocate,
    extract,
    make_elastic,
    measure_sensitivity,
    name_sizes,
)
from slimformer.sizes.choice import ORDERS
from tests import zoo


@cache
def model():
    config = zoo.CONFIGS["llama"]()
    config.num_hidden_layers = 16
    from transformers import AutoModel

    built = AutoModel.from_config(config)
    make_elastic(built, skip=True)
    return built


@cache
def costs(what):
    return Costs.of(model(), what)


def larger(elastic, size):
    if size is None:
        return elastic.sizes[0]
    index = elastic.sizes.index(size)
    return elastic.sizes[index + 1] if index + 1 < len(elastic.sizes) else None


@pytest.mark.parametrize("what", ["parameters", "bytes", "flops"])
@settings(max_examples=100, deadline=None)
@given(share=st.floats(0, 1.1), order=st.sampled_from(sorted(ORDERS)), sensitive=st.booleans())
def test_a_budget_is_kept_to_and_no_block_could_grow(what, share, order, sensitive):
    elastic, table = Elastic.of(model()), costs(what)
    least = min(table.total(Allocation((None,) * i + (elastic.sizes[0],) + (None,) * (15 - i))) for i in range(16))
    limit = least + share * (table.total(elastic.largest) - least)
    draw = random.Random(share)
    losses = [{size: draw.random() / size.neurons for size in elastic.sizes} for _ in range(16)] if sensitive else None
    allocation = allocate(elastic, Budget(table, limit), order, losses)
    assert table.total(allocation) <= limit
    for index, size in enumerate(allocation):
        grown = larger(elastic, size)
        assert grown is None or table.total(allocation.replaced(index, grown)) > limit


@pytest.mark.parametrize("what", ["parameters", "bytes", "flops"])
def test_what_a_file_would_hold_keeps_to_a_hundred_budgets(what):
    built = zoo.build("bert").half()
    built.set_attn_implementation("eager")
    elastic = make_elastic(built, skip=True)
    table, draw = Costs.of(built, what, length=8), random.Random(what)
    least, most = table.total(elastic.allocation("0,S,0")), table.total(elastic.largest)
    for _ in range(100):
        limit = draw.uniform(least, most)
        allocation = allocate(elastic, Budget(table, limit))
        assert measured(extract(built, allocation), what) == table.total(allocation) <= limit
        for index, size in enumerate(allocation):
            grown = larger(elastic, size)
            assert grown is None or table.total(allocation.replaced(index, grown)) > limit


def measured(extracted, what):
    """What an extracted model holds, or computes for a text of eight tokens."""
    if what == "flops":
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            extracted(input_ids=torch.ones(1, 8, dtype=torch.long))
        return counter.get_total_flops()
    stored = stored_tensors(extracted).values()
    return sum(tensor.numel() * (tensor.element_size() if what == "bytes" else 1) for tensor in stored)


@pytest.mark.parametrize(("middle", "large"), [(12, 4), (5, 11), (16, 0)])
def test_the_papers_picks_of_sixteen_blocks(middle, large):
    """[M x 12, L x 4] and [M x 5, L x 11] of Table 5: two neighbouring sizes, the larger one in the later blocks."""
    elastic, table = Elastic.of(model()), costs("parameters")
    expected = elastic.allocation(["M"] * middle + ["L"] * large)
    assert allocate(elastic, Budget(table, table.total(expected))) == expected


def test_the_other_orders():
    elastic, table = Elastic.of(model()), costs("parameters")
    budget = Budget(table, table.total(elastic.allocation(["M"] * 12 + ["L"] * 4)))
    picks = {order: str(allocate(elastic, budget, order)) for order in ORDERS}
    assert picks == {
        "increasing": ",".join("M" * 12 + "L" * 4),
        "decreasing": ",".join("L" * 4 + "M" * 12),
        "increase-decrease": ",".join("M" * 6 + "L" * 4 + "M" * 6),
        "decrease-increase": ",".join("L" * 2 + "M" * 12 + "L" * 2),
    }


def test_a_budget_below_the_smallest_is_refused():
    elastic = Elastic.of(model())
    with pytest.raises(SizeError, match=r"no size keeps to 10 parameters: the smallest has [\d,]+; allow"):
        allocate(elastic, Budget(costs("parameters"), 10))


def test_sensitivity_spends_the_budget_where_it_helps():
    """One block that suffers is made large first; the sum of losses is the least of all allocations."""
    built = zoo.build("bert")
    elastic = make_elastic(built, name_sizes([0.25, 0.5, 1]))
    table = Costs.of(built)
    small, half, whole = elastic.sizes
    losses = [{small: 0.3, half: 0.2, whole: 0.0}, {small: 2.0, half: 1.5, whole: 0.0}, {small: 0.1, half: 0, whole: 0}]
    limit = table.total(elastic.allocation("S,XL,S"))
    chosen = allocate(elastic, Budget(table, limit), sensitivity=losses)
    assert str(chosen) == "S,XL,S"
    best = min(
        sum(losses[i][size] for i, size in enumerate(sizes))
        for sizes in product(elastic.sizes, repeat=3)
        if table.total(Allocation(sizes)) <= limit
    )
    assert sum(losses[i][size] for i, size in enumerate(chosen.blocks)) == best


def test_sensitivity_is_the_rise_of_the_loss_block_by_block():
    built = zoo.build("bert")
    elastic = make_elastic(built, name_sizes([0.5, 1]))
    half, whole = elastic.sizes

    def loss() -> float:
        return sum((index + 1) * (64 - block.neurons.value) for index, block in enumerate(elastic.blocks))

    assert measure_sensitivity(elastic, loss) == [{whole: 0.0, half: 32.0 * (index + 1)} for index in range(3)]
