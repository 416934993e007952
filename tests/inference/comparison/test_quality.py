"""Intervals and scores class by class, against slow and obvious ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimformer.inference.comparison.cost import time_in_turns
from slimformer.inference.comparison.quality import draw_rows, percentile_interval
from slimformer.tasks.metrics import score_classes, score_labels


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_classes_are_scored_as_one_by_one(pairs):
    truth, predicted = (np.array(each) for each in zip(*pairs, strict=True))
    scores = score_classes(truth, predicted, ["a", "b", "c"])
    for index in range(3):
        called = [t for t, p in pairs if p == index]
        there = [p for t, p in pairs if t == index]
        precision = sum(t == index for t in called) / len(called) if called else 0.0
        recall = sum(p == index for p in there) / len(there) if there else 0.0
        assert scores.precision[index] == pytest.approx(precision)
        assert scores.recall[index] == pytest.approx(recall)
        both = precision + recall
        assert scores.f1[index] == pytest.approx(2 * precision * recall / both if both else 0.0)
        assert scores.support[index] == len(there)
        assert scores.confusion[index] == [sum(p == other for p in there) for other in range(3)]


def test_labels_are_scored_one_by_one():
    truth = np.array([[1, 0], [1, 1], [0, 0]])
    predicted = np.array([[1, 1], [0, 1], [0, 0]])
    scores = score_labels(truth, predicted, ["a", "b"])
    assert scores.precision == [1.0, 0.5]
    assert scores.recall == [0.5, 1.0]
    assert scores.support == [2, 1]
    assert scores.confusion is None


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        sample = rng.random(300) < 0.8
        low, high = percentile_interval(sample[draw_rows(300, seed=trial)].mean(1))
        covered += low <= 0.8 <= high
    assert 0.89 <= covered / 200 <= 0.99


def test_all_are_asked_the_same_and_none_is_always_the_last():
    asked = []
    calls = [lambda item, who=who: asked.append((who, item)) for who in range(3)]
    latencies = time_in_turns(calls, [4, 7, 9])
    assert len(latencies) == 3
    timed = asked[9:]  # after three rounds to warm up
    assert [item for _, item in timed] == [4, 4, 4, 7, 7, 7, 9, 9, 9]
    assert [who for who, _ in timed] == [0, 1, 2, 1, 2, 0, 2, 0, 1]
