"""Choosing allocations by their loss: scoring some or all of them, and evolutionary search with a learned predictor.

The search is the baseline that MatFormer compares Mix'n'Match with (arXiv 2310.07707, section 4.1 and appendix): random
allocations are measured, a predictor of the loss is fitted to 60 % of them and tested on the rest, and evolution within
the budget asks the predictor alone.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from slimformer.errors import SizeError
from slimformer.sizes.choice import ORDERS, grow, smallest
from slimformer.sizes.size import Allocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np

    from slimformer.sizes.choice import Budget
    from slimformer.sizes.cost import Costs
    from slimformer.sizes.elastic import Elastic
    from slimformer.sizes.size import Size

    Vector = np.ndarray[Any, Any]

#: Share of the measured pairs that the predictor is fitted to; it is tested on the others.
FITTED = 0.6
#: Fewest pairs of which one part can be fitted and the other tell how well.
MIN_PAIRS = 10
#: Weights of the squared coefficients that are tried.
PENALTIES = tuple(10.0**power for power in range(-6, 3))


@dataclass(frozen=True)
class Scored:
    """An allocation and the loss measured there."""

    allocation: Allocation
    loss: float


@dataclass(frozen=True)
class Point:
    """An allocation with what it costs and loses."""

    allocation: Allocation
    cost: float
    loss: float


def count_allocations(elastic: Elastic) -> int:
    """How many allocations there are."""
    return math.prod(len(choices) for choices in _choices(elastic)) - all(map(elastic.may_skip, _indices(elastic)))


def enumerate_allocations(elastic: Elastic) -> Iterator[Allocation]:
    """Every allocation, one after the other; there are as many as sizes to the power of blocks."""
    for sizes in product(*_choices(elastic)):
        if any(size is not None for size in sizes):
            yield Allocation(sizes)


def sample_allocations(elastic: Elastic, count: int, seed: int = 0, skip: bool = False) -> list[Allocation]:
    """Different allocations drawn at random; all of them where there are no more.

    Args:
        elastic: The sizes there are.
        count: How many.
        seed: Seed of the draw.
        skip: Whether blocks that may be skipped are skipped in some of them.
    """
    choices = _choices(elastic) if skip else [list(elastic.sizes)] * len(elastic.blocks)
    if math.prod(map(len, choices)) <= count:
        return [Allocation(sizes) for sizes in product(*choices) if any(sizes)]
    draw = random.Random(f"allocations {seed}")
    drawn: dict[Allocation, None] = {}
    while len(drawn) < count:
        allocation = Allocation(tuple(draw.choice(sizes) for sizes in choices))
        if any(allocation):
            drawn[allocation] = None
    return list(drawn)


def score(elastic: Elastic, allocations: Iterable[Allocation], loss: Callable[[], float]) -> list[Scored]:
    """Measure the loss of each allocation.

    Args:
        elastic: The sizes there are.
        allocations: Which to measure.
        loss: Measures the model at the size in use.
    """
    scored = []
    for allocation in allocations:
        with elastic.at(allocation):
            scored.append(Scored(allocation, loss()))
    return scored


def pareto_front(scored: Iterable[Scored], costs: Costs) -> list[Point]:
    """The allocations of which none is both cheaper and better, the cheapest first."""
    points = [Point(each.allocation, costs.total(each.allocation), each.loss) for each in scored]
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.loss)):
        if not front or point.loss < front[-1].loss:
            front.append(point)
    return front


@dataclass(frozen=True)
class Predictor:
    """Predicts the loss of an allocation from the size of each block: ridge regression on what was measured.

    Each size of each block has a coefficient, and so have the mean share of neurons, its square and its logarithm, by
    which blocks that shrink together lose more or less than each alone.

    Args:
        elastic: The sizes there are.
        weights: The coefficients, the constant last.
        error: Mean squared error on pairs that it was not fitted to.
        correlation: Spearman's rank correlation there.
    """

    elastic: Elastic
    weights: Vector
    error: float
    correlation: float

    @classmethod
    def fit(cls, elastic: Elastic, scored: Sequence[Scored], seed: int = 0) -> Predictor:
        """Fit to 60 % of some measured allocations, and test on the rest."""
        import numpy as np
        from scipy.stats import spearmanr

        if len(scored) < MIN_PAIRS:
            raise SizeError(f"a predictor needs at least {MIN_PAIRS} measured allocations, and got {len(scored)}")
        order = random.Random(f"pairs {seed}").sample(range(len(scored)), len(scored))
        cut = round(FITTED * len(scored))
        features = np.array([_features(elastic, scored[number].allocation) for number in order])
        losses = np.array([scored[number].loss for number in order])
        weights = _ridge(features[:cut], losses[:cut])
        predicted = features[cut:] @ weights
        error = float(np.mean((predicted - losses[cut:]) ** 2))
        return cls(elastic, weights, error, float(spearmanr(predicted, losses[cut:]).statistic))

    def __call__(self, allocation: Allocation) -> float:
        """The loss to expect."""
        import numpy as np

        return float(np.array(_features(self.elastic, allocation)) @ self.weights)


def evolve(
    elastic: Elastic,
    budget: Budget,
    predict: Callable[[Allocation], float],
    *,
    population: int = 64,
    generations: int = 40,
    mutation: float = 0.15,
    seed: int = 0,
) -> Allocation:
    """The allocation of the least predicted loss that evolution finds within a budget.

    The better half of each generation stays, and pairs of it have children with the size of each block from one or the
    other, changed at random now and then. A child that is too costly loses sizes until it is not, and what is left of
    the budget is used up.

    Args:
        elastic: The sizes there are.
        budget: What must be kept to.
        predict: Predicts the loss of an allocation, such as a `Predictor`.
        population: Allocations in each generation.
        generations: How many there are.
        mutation: How often a block of a child gets a size of its own.
        seed: Seed of all that is drawn.
    """
    draw = random.Random(f"evolution {seed}")
    least = smallest(elastic, budget)
    losses: dict[Allocation, float] = {}

    def settle(allocation: Allocation) -> Allocation:
        within = grow(elastic, _shrink(elastic, allocation, budget, least, draw), budget, ORDERS["increasing"])
        losses.setdefault(within, predict(within))
        return within

    def child(one: Allocation, other: Allocation) -> Allocation:
        sizes = [draw.choice(pair) for pair in zip(one, other, strict=True)]
        return Allocation(tuple(draw.choice(elastic.sizes) if draw.random() < mutation else size for size in sizes))

    start = sample_allocations(elastic, population, seed)
    living = [settle(allocation) for allocation in start]
    for _ in range(generations):
        parents = sorted(dict.fromkeys(living), key=losses.__getitem__)[: max(2, population // 2)]
        children = [settle(child(draw.choice(parents), draw.choice(parents))) for _ in range(population // 2)]
        living = parents + children
    return min(living, key=losses.__getitem__)


def _shrink(
    elastic: Elastic, allocation: Allocation, budget: Budget, least: Allocation, draw: random.Random
) -> Allocation:
    """Let blocks drawn at random lose a size until the budget is kept to; at worst all that can be lost is."""
    places = [index for index, size in enumerate(allocation) if size != least.blocks[index]]
    while not budget.holds(allocation) and places:
        index = draw.choice(places)
        size = allocation.blocks[index]
        assert size is not None
        rank = elastic.sizes.index(size)
        allocation = allocation.replaced(index, elastic.sizes[rank - 1] if rank else least.blocks[index])
        if allocation.blocks[index] == least.blocks[index]:
            places.remove(index)
    return allocation


def _ridge(features: Vector, losses: Vector) -> Vector:
    """Coefficients of ridge regression, its penalty chosen by leave-one-out error (in closed form)."""
    import numpy as np

    def fit(penalty: float) -> tuple[float, Vector]:
        scale = penalty * len(features) * np.eye(features.shape[1])
        scale[-1, -1] = 0  # the constant is free
        inverse = np.linalg.pinv(features.T @ features + scale) @ features.T
        weights = inverse @ losses
        leverage = np.clip(np.einsum("ij,ji->i", features, inverse), 0, 1 - 1e-9)
        return float(np.mean(((losses - features @ weights) / (1 - leverage)) ** 2)), weights

    return min((fit(penalty) for penalty in PENALTIES), key=lambda fitted: fitted[0])[1]


def _features(elastic: Elastic, allocation: Allocation) -> list[float]:
    one_hot = [float(size == each) for size in allocation for each in elastic.sizes]
    share = sum(0.0 if size is None else size.neurons for size in allocation) / len(allocation)
    return [*one_hot, share, share**2, math.log(share), 1.0]


def _choices(elastic: Elastic) -> list[list[Size | None]]:
    return [[*([None] if elastic.may_skip(index) else []), *elastic.sizes] for index in _indices(elastic)]


def _indices(elastic: Elastic) -> range:
    return range(len(elastic.blocks))
