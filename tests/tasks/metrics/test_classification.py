from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import DataError
from slimformer.tasks.metrics import classification_metrics

CLASSES = 4
PAIRS = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=30)


def f1_of(label, pairs):
    right = sum(truth == guess == label for truth, guess in pairs)
    wrong = sum((truth == label) != (guess == label) for truth, guess in pairs)
    return 2 * right / (2 * right + wrong) if right + wrong else 0.0


@settings(max_examples=80, deadline=None)
@given(PAIRS)
def test_against_counting(pairs):
    truth, guesses = (np.array(side) for side in zip(*pairs, strict=True))
    measured = classification_metrics(truth, guesses, CLASSES, ("accuracy", "f1", "f1_macro", "f1_micro"))
    accuracy = sum(truth == guess for truth, guess in pairs) / len(pairs)
    assert measured["accuracy"] == pytest.approx(accuracy)
    assert measured["f1_micro"] == pytest.approx(accuracy)
    assert measured["f1"] == pytest.approx(f1_of(1, pairs))
    assert measured["f1_macro"] == pytest.approx(sum(f1_of(label, pairs) for label in range(CLASSES)) / CLASSES)


def test_matthews_by_hand():
    # 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
    truth = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
    guesses = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    expected = (3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6)
    assert classification_metrics(truth, guesses, 2, ["matthews"])["matthews"] == pytest.approx(expected)
    assert classification_metrics(truth, truth * 0, 2, ["matthews"]) == {"matthews": 0.0}


def test_numbers_are_plain_and_names_checked():
    truth = np.array([0, 1])
    assert type(classification_metrics(truth, truth, 2, ["accuracy"])["accuracy"]) is float
    with pytest.raises(DataError, match="metric `bleu` does not fit this task; give some of: accuracy"):
        classification_metrics(truth, truth, 2, ["bleu"])
