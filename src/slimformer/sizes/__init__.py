"""Nested sizes of one model: which there are, what they cost, which blocks get which, and what serves now."""

from slimformer.sizes.choice import ORDERS, Budget, allocate, measure_sensitivity
from slimformer.sizes.cost import Costs
from slimformer.sizes.elastic import Elastic, NestedBlock, extract, is_elastic, make_elastic, make_plain
from slimformer.sizes.ordering import ORDERINGS, importance, magnitude, reorder
from slimformer.sizes.size import RATIOS, Allocation, Size, name_sizes

__all__ = [
    "ORDERINGS",
    "ORDERS",
    "RATIOS",
    "Allocation",
    "Budget",
    "Costs",
    "Elastic",
    "NestedBlock",
    "Size",
    "allocate",
    "extract",
    "importance",
    "is_elastic",
    "magnitude",
    "make_elastic",
    "make_plain",
    "measure_sensitivity",
    "name_sizes",
    "reorder",
]
