from __future__ import annotations

import numpy as np
import pytest

from slimformer.errors import DataError
from slimformer.tasks import leave_one_out, one_nearest_neighbour
from slimformer.tasks.metrics import neighbours


def slow(database, labels, queries, truth, own=False):
    right = 0
    for number, query in enumerate(queries):
        cosines = [
            -2.0 if own and number == other else item @ query / np.linalg.norm(item) / np.linalg.norm(query)
            for other, item in enumerate(database)
        ]
        right += labels[int(np.argmax(cosines))] == truth[number]
    return right / len(queries)


def test_against_one_by_one(monkeypatch):
    monkeypatch.setattr(neighbours, "_CHUNK", 7)
    draw = np.random.default_rng(0)
    database, queries = draw.normal(size=(30, 5)), draw.normal(size=(20, 5))
    labels, truth = draw.integers(3, size=30), draw.integers(3, size=20)
    assert one_nearest_neighbour(database, labels, queries, truth) == pytest.approx(
        slow(database, labels, queries, truth)
    )
    assert leave_one_out(database, labels) == pytest.approx(slow(database, labels, database, labels, own=True))


def test_length_does_not_matter():
    assert one_nearest_neighbour([[100, 0], [0, 1]], ["a", "b"], [[1, 2]], ["b"]) == 1.0


def test_shapes_are_checked():
    with pytest.raises(DataError, match="do not go with 1 labels"):
        one_nearest_neighbour([[1, 0], [0, 1]], ["a"], [[1, 0]], ["a"])
    with pytest.raises(DataError, match="queries are 3 wide, the database 2"):
        one_nearest_neighbour([[1, 0]], ["a"], [[1, 0, 0]], ["a"])
    with pytest.raises(DataError, match="one item has no neighbour"):
        leave_one_out([[1, 0]], ["a"])
