"""Mix'n'Match: which block gets which size within a budget (MatFormer, arXiv 2310.07707, sections 3.3 and 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Literal

from slimformer.errors import SizeError, describe
from slimformer.sizes.size import Allocation

if TYPE_CHECKING:
    from collections.abc import Callable

    from slimformer.sizes.cost import Costs
    from slimformer.sizes.elastic import Elastic
    from slimformer.sizes.size import Size

Order = Literal["increasing", "decreasing", "increase-decrease", "decrease-increase"]

#: Picks that are followed at once where sizes are chosen by sensitivity.
STEPS = 2000


#: What the first blocks use up → the least loss for it, and the sizes that have it.
_Picks = dict[float, tuple[float, tuple["Size", ...]]]


@dataclass(frozen=True)
class Budget:
    """A limit on one kind of cost."""

    costs: Costs
    limit: float

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, Real) or not self.limit > 0:
            raise SizeError(f"a budget has the limit `{describe(self.limit)}`; give a number above 0")

    def holds(self, allocation: Allocation) -> bool:
        """Whether an allocation keeps to the limit."""
        return self.costs.total(allocation) <= self.limit


def allocate(
    elastic: Elastic,
    budget: Budget,
    order: Order = "increasing",
    sensitivity: Sequence[dict[Size, float]] | None = None,
) -> Allocation:
    """The largest allocation within a budget: growing any one block would exceed it.

    Args:
        elastic: The sizes there are.
        budget: What must be kept to.
        order: Which blocks are larger, if not all can be alike. At most two sizes that are neighbours are used, and
            more of the later blocks get the larger one ("increasing", the paper's least slope and its best).
        sensitivity: Loss that each size costs in each block, from `measure_sensitivity`: the allocation of the least
            sum is chosen in place of an order.
    """
    if not isinstance(order, str) or order not in ORDERS:
        raise SizeError(f"there is no order `{describe(order)}`; there are {', '.join(ORDERS)}")
    if not isinstance(budget, Budget):
        raise SizeError(f"the budget is `{describe(budget)}`; give a `Budget` of costs and a limit")
    if any(costs.keys() != set(elastic.sizes) for costs in budget.costs.blocks):
        raise SizeError("the budget's costs are those of a model with other sizes; count this one with `Costs.of`")
    if sensitivity is not None:
        _check_sensitivity(elastic, sensitivity)
    least = smallest(elastic, budget)
    if sensitivity is not None:
        return grow(elastic, _least_loss(elastic, budget, sensitivity, least), budget, ORDERS["increasing"])
    chosen = least
    ranked = ORDERS[order](len(elastic.blocks))
    for small, large in pairwise(elastic.sizes):
        for count in range(len(ranked) + 1):
            larger = set(ranked[:count])
            allocation = Allocation(tuple(large if index in larger else small for index in range(len(ranked))))
            if budget.holds(allocation):
                chosen = allocation
    return grow(elastic, chosen, budget, ORDERS[order])


def measure_sensitivity(elastic: Elastic, loss: Callable[[], float]) -> list[dict[Size, float]]:
    """How much the loss of the whole model rises where one block alone gets a smaller size.

    Args:
        elastic: The sizes there are.
        loss: Measures the model on a calibration set, at the size in use.
    """
    with elastic.at(elastic.largest):
        whole = _finite(loss())
    measured: list[dict[Size, float]] = []
    for index in range(len(elastic.blocks)):
        row = {elastic.sizes[-1]: 0.0}
        for size in elastic.sizes[:-1]:
            with elastic.at(elastic.largest.replaced(index, size)):
                row[size] = _finite(loss()) - whole
        measured.append(row)
    return measured


def _finite(loss: float) -> float:
    """A loss that can be compared."""
    if not isinstance(loss, Real) or not math.isfinite(loss):
        raise SizeError(f"the calibration set gives the loss `{describe(loss)}`, which is no finite number; mend it")
    return float(loss)


def _check_sensitivity(elastic: Elastic, sensitivity: Sequence[dict[Size, float]]) -> None:
    """Refuse losses that are not one finite number for each size of each block."""
    rows = list(sensitivity) if isinstance(sensitivity, Sequence) else []
    if len(rows) != len(elastic.blocks):
        raise SizeError(
            f"the sensitivity has {len(rows)} blocks, and the model has {len(elastic.blocks)}; take it from "
            "`measure_sensitivity`"
        )
    for index, row in enumerate(rows):
        losses = [row.get(size) for size in elastic.sizes] if isinstance(row, dict) else [None]
        if not all(isinstance(loss, Real) and math.isfinite(loss) for loss in losses):
            raise SizeError(
                f"the sensitivity of block {index} is `{describe(row)}`, which is no finite loss for each of "
                f"{', '.join(elastic.names)}; take it from `measure_sensitivity`"
            )


def smallest(elastic: Elastic, budget: Budget) -> Allocation:
    """Every block at the smallest size, without the blocks that may be skipped where that is still too much.

    Raises:
        SizeError: Where nothing is within the budget.
    """
    allocation = Allocation((elastic.sizes[0],) * len(elastic.blocks))
    for index in _middle_first(len(elastic.blocks)):
        if budget.holds(allocation):
            return allocation
        if elastic.may_skip(index) and sum(size is not None for size in allocation) > 1:
            allocation = allocation.replaced(index, None)
    if budget.holds(allocation):
        return allocation
    costs, least = budget.costs, budget.costs.total(allocation)
    if costs.what == "milliseconds":
        least = math.ceil(10 * least) / 10  # was measured, and no better than that
    of = f" for a text or an image of {costs.length} tokens" if costs.what in ("flops", "milliseconds") else ""
    raise SizeError(
        f"no size keeps to {budget.limit:,.12g} {costs.what}{of}: the smallest has {least:,.12g}; allow at least that"
    )


def grow(elastic: Elastic, allocation: Allocation, budget: Budget, order: Callable[[int], list[int]]) -> Allocation:
    """Let single blocks grow as long as the budget allows one to."""
    larger: dict[Size | None, Size] = {None: elastic.sizes[0], **dict(pairwise(elastic.sizes))}
    grown = True
    while grown:
        grown = False
        for index in order(len(allocation)):
            size = allocation.blocks[index]
            if size in larger and budget.holds(allocation.replaced(index, larger[size])):
                allocation, grown = allocation.replaced(index, larger[size]), True
                break
    return allocation


def _least_loss(
    elastic: Elastic, budget: Budget, sensitivity: Sequence[dict[Size, float]], start: Allocation
) -> Allocation:
    """The least sum of losses within the budget, block after block: a knapsack with one pick from each group."""
    if None in start.blocks:
        return start
    free = budget.limit - budget.costs.total(start)
    best: _Picks = {0: (0.0, ())}
    for costs, losses in zip(budget.costs.blocks, sensitivity, strict=True):
        longer: _Picks = {}
        for used, (loss, sizes) in best.items():
            for size in elastic.sizes:
                total = used + costs[size] - costs[elastic.sizes[0]]
                if total <= free and loss + losses[size] < longer.get(total, (float("inf"), ()))[0]:
                    longer[total] = (loss + losses[size], (*sizes, size))
        best = _pareto(longer, free / STEPS)
    return Allocation(min(best.values(), key=lambda pick: pick[0])[1])


def _pareto(picks: _Picks, step: float) -> _Picks:
    """Picks that lose less than every cheaper one; of very many, the best one of each step of the budget."""
    kept: _Picks = {}
    least = float("inf")
    for used in sorted(picks):
        if picks[used][0] < least:
            kept[used], least = picks[used], picks[used][0]
    if len(kept) <= STEPS:
        return kept
    return {used: kept[used] for used in {int(used / step): used for used in sorted(kept)}.values()}


def _middle_first(count: int) -> list[int]:
    return sorted(range(count), key=lambda index: abs(index - (count - 1) / 2))


#: Orders of the blocks, those that get the larger size first: what the size does from the first block to the last.
ORDERS: dict[str, Callable[[int], list[int]]] = {
    "increasing": lambda count: list(range(count))[::-1],
    "decreasing": lambda count: list(range(count)),
    "increase-decrease": _middle_first,
    "decrease-increase": lambda count: _middle_first(count)[::-1],
}
