"""Nested sizes of one model: which there are, what they cost, which blocks get which, and what serves now."""

from typing import TYPE_CHECKING

from slimformer.lazy import lazy

if TYPE_CHECKING:
    from slimformer.sizes.adapters import merge_adapters, nest_adapters
    from slimformer.sizes.choice import ORDERS, Budget, allocate, measure_sensitivity
    from slimformer.sizes.cost import Costs
    from slimformer.sizes.decoding import Draft, DraftStatistics, frequent_tokens
    from slimformer.sizes.elastic import Elastic, NestedBlock, bake_size, extract, is_elastic, make_elastic, make_plain
    from slimformer.sizes.latency import measure_latency
    from slimformer.sizes.ordering import ORDERINGS, importance, magnitude, reorder
    from slimformer.sizes.saving import copy_largest
    from slimformer.sizes.search import (
        Point,
        Predictor,
        Scored,
        count_allocations,
        enumerate_allocations,
        evolve,
        pareto_front,
        sample_allocations,
        score,
    )
    from slimformer.sizes.size import MOST_SIZES, RATIOS, Allocation, Size, name_sizes

__getattr__ = lazy(
    __name__,
    {
        "adapters": ("merge_adapters", "nest_adapters"),
        "choice": ("ORDERS", "Budget", "allocate", "measure_sensitivity"),
        "cost": ("Costs",),
        "decoding": ("Draft", "DraftStatistics", "frequent_tokens"),
        "elastic": ("Elastic", "NestedBlock", "bake_size", "extract", "is_elastic", "make_elastic", "make_plain"),
        "latency": ("measure_latency",),
        "ordering": ("ORDERINGS", "importance", "magnitude", "reorder"),
        "saving": ("copy_largest",),
        "search": (
            "Point",
            "Predictor",
            "Scored",
            "count_allocations",
            "enumerate_allocations",
            "evolve",
            "pareto_front",
            "sample_allocations",
            "score",
        ),
        "size": ("MOST_SIZES", "RATIOS", "Allocation", "Size", "name_sizes"),
    },
)

__all__ = [
    "MOST_SIZES",
    "ORDERINGS",
    "ORDERS",
    "RATIOS",
    "Allocation",
    "Budget",
    "Costs",
    "Draft",
    "DraftStatistics",
    "Elastic",
    "NestedBlock",
    "Point",
    "Predictor",
    "Scored",
    "Size",
    "allocate",
    "bake_size",
    "copy_largest",
    "count_allocations",
    "enumerate_allocations",
    "evolve",
    "extract",
    "frequent_tokens",
    "importance",
    "is_elastic",
    "magnitude",
    "make_elastic",
    "make_plain",
    "measure_latency",
    "measure_sensitivity",
    "merge_adapters",
    "name_sizes",
    "nest_adapters",
    "pareto_front",
    "reorder",
    "sample_allocations",
    "score",
]


def __dir__() -> list[str]:
    return __all__
