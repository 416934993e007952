"""Nested sizes of one model: which there are, what they cost, which blocks get which, and what serves now."""

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
