"""What adaptation does to weights and scores, measured and in theory; every study returns data with a picture."""

from slimformer.methods.adapt.analysis.course import Course, Score, write_unlabelled
from slimformer.methods.adapt.analysis.distance import Distance, distance_by_round, weight_distance
from slimformer.methods.adapt.analysis.gaps import Gap, gaps_by_rounds
from slimformer.methods.adapt.analysis.linear import BoundReport, LinearProblem, check_bounds, random_problem
from slimformer.methods.adapt.analysis.scores import picture, scores_by_labels, scores_by_rounds, scores_by_steps
from slimformer.report import Finding

__all__ = [
    "BoundReport",
    "Course",
    "Distance",
    "Finding",
    "Gap",
    "LinearProblem",
    "Score",
    "check_bounds",
    "distance_by_round",
    "gaps_by_rounds",
    "picture",
    "random_problem",
    "scores_by_labels",
    "scores_by_rounds",
    "scores_by_steps",
    "weight_distance",
    "write_unlabelled",
]
