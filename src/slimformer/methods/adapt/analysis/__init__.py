"""What adaptation does to weights, measured and in theory; every study returns data with a picture."""

from slimformer.methods.adapt.analysis.distance import Distance, distance_by_round, weight_distance
from slimformer.methods.adapt.analysis.linear import BoundReport, LinearProblem, check_bounds, random_problem
from slimformer.report import Finding

__all__ = [
    "BoundReport",
    "Distance",
    "Finding",
    "LinearProblem",
    "check_bounds",
    "distance_by_round",
    "random_problem",
    "weight_distance",
]
