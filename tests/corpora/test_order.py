from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slimformer.corpus.order.blocks import Order


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 100), st.integers(0, 9))
def test_blocks_divide_every_epoch_and_are_bounded(sizes, buffer, seed):
    order = Order(np.array(sizes, np.int64), buffer, seed)
    for epoch in (0, 1, 7):
        blocks = [order.segments(epoch * order.blocks + number) for number in range(order.blocks)]
        assert sorted(segment for block in blocks for segment in block) == list(range(len(sizes)))
        assert all(sum(sizes[segment] for segment in block) < buffer + max(sizes) for block in blocks)


def test_orders_are_pure_functions_of_seed_epoch_and_block():
    orders = [Order(np.full(60, 10, np.int64), 100, seed) for seed in (0, 0, 1)]
    blocks = [[order.segments(number) for number in range(12)] for order in orders]
    assert blocks[0] == blocks[1] == [orders[0].segments(number) for number in range(12)]
    assert blocks[0][:6] != blocks[0][6:]
    assert blocks[0] != blocks[2]
    examples = [order.examples(number, 40).tolist() for order in orders[1:] for number in range(12)]
    assert len({tuple(each) for each in examples}) == 24
    assert all(sorted(each) == list(range(40)) for each in examples)
    assert orders[0].examples(3, 40).tolist() == examples[3]
