"""What adaptation does to weights: the paper's linear model; every function returns data with a picture."""

from slimformer.methods.adapt.analysis.linear import BoundReport, LinearProblem, check_bounds, random_problem
from slimformer.report import Finding

__all__ = [
    "BoundReport",
    "Finding",
    "LinearProblem",
    "check_bounds",
    "random_problem",
]
