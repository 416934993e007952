"""Metrics: pure functions of what is true and what was predicted, plain numbers out."""

from slimformer.tasks.metrics.answers import answer_f1, exact_match, normalise, words
from slimformer.tasks.metrics.chosen import SMALLER_IS_BETTER, chosen
from slimformer.tasks.metrics.classes import ClassScores, score_classes, score_labels
from slimformer.tasks.metrics.labels import classification_metrics, multi_label_metrics, tagging_metrics
from slimformer.tasks.metrics.neighbours import leave_one_out, one_nearest_neighbour
from slimformer.tasks.metrics.numbers import likelihood_metrics, reduce_logits, regression_metrics

__all__ = [
    "SMALLER_IS_BETTER",
    "ClassScores",
    "answer_f1",
    "chosen",
    "classification_metrics",
    "exact_match",
    "leave_one_out",
    "likelihood_metrics",
    "multi_label_metrics",
    "normalise",
    "one_nearest_neighbour",
    "reduce_logits",
    "regression_metrics",
    "score_classes",
    "score_labels",
    "tagging_metrics",
    "words",
]
