"""Looking at an elastic model: what its allocations cost and lose, as data with a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.artifact import load
from slimformer.inference.extraction import Choice, calibration_loss, look_up_elastic
from slimformer.report import Figure, Finding, Series, front
from slimformer.sizes import Costs, Elastic, Point, pareto_front, sample_allocations, score

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.sizes.cost import Measure
    from slimformer.tasks.options import TaskOptions


@dataclass(frozen=True)
class Front:
    """Allocations with what they cost and lose.

    Args:
        what: What the cost is: "parameters", "bytes" or "flops".
        points: All that were measured.
        best: Those of which none is both cheaper and better, the cheapest first.
        sizes: The trained sizes and those with published names.
    """

    what: str
    points: Sequence[Point]
    best: Sequence[Point]
    sizes: dict[str, Point]

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON types."""
        return {
            "cost": self.what,
            "points": [_row(point) for point in self.points],
            "front": [_row(point) for point in self.best],
            "sizes": {name: _row(point) for name, point in self.sizes.items()},
        }


def pareto(
    artifact: str | Path,
    options: TaskOptions,
    *,
    what: Measure = "parameters",
    count: int = 200,
    split: str = "dev",
    examples: int = 256,
    seed: int = 0,
) -> Finding[Front]:
    """Measure allocations of an elastic artifact, and draw the front of the best.

    Args:
        artifact: The folder of the elastic artifact.
        options: Task and data; what is not given is what it was trained with.
        what: What the cost is: "parameters", "bytes" or "flops".
        count: Allocations that are measured, drawn at random, beside the sizes themselves; all where there are fewer.
        split: Where the examples are taken from.
        examples: How many.
        seed: Seed of the draw.
    """
    source = look_up_elastic(artifact)
    loaded = load(source.name)
    elastic = Elastic.of(loaded.model)
    costs = Costs.of(loaded.model, what, Choice(allocation=elastic.largest).tokens(source))
    named = {name: elastic.allocation(name) for name in (*elastic.names, *elastic.published)}
    allocations = dict.fromkeys([*named.values(), *sample_allocations(elastic, count, seed)])
    loss = calibration_loss(source, loaded.model, loaded.processor, options, split, examples)
    scored = score(elastic, allocations, loss)
    points = {each.allocation: Point(each.allocation, costs.total(each.allocation), each.loss) for each in scored}
    sizes = {name: points[allocation] for name, allocation in named.items()}
    data = Front(what, list(points.values()), pareto_front(scored, costs), sizes)
    return Finding(data, Figure("What an allocation costs and loses", _picture(data)))


def _picture(data: Front) -> str:
    cloud = Series("measured", *_axes(data.points))
    best = Series("none is cheaper and better", *_axes(data.best))
    return front(cloud, best, [(name, each.cost, each.loss) for name, each in data.sizes.items()], data.what, "loss")


def _axes(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.cost for point in points], [point.loss for point in points]


def _row(point: Point) -> dict[str, Any]:
    return {"allocation": point.allocation.by_block, "cost": point.cost, "loss": point.loss}
