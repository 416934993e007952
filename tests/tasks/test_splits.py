from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import DataError
from slimformer.tasks.splits import carve_groups, carve_in_order, check_splits, sample, split_in_name

SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=200), st.integers())
def test_groups_stay_together_whatever_the_order(rows, seed):
    if len(set(rows)) < 3:
        with pytest.raises(DataError, match="too few to cut train, dev, test from"):
            carve_groups(rows, SHARES, str)
        return
    parts = carve_groups(rows, SHARES, str)
    assert sorted(row for part in parts.values() for row in part) == sorted(rows)
    groups = {split: set(part) for split, part in parts.items()}
    assert all(groups.values())
    assert not groups["train"] & groups["dev"] | groups["train"] & groups["test"] | groups["dev"] & groups["test"]
    shuffled = random.Random(seed).sample(rows, len(rows))
    assert {split: set(part) for split, part in carve_groups(shuffled, SHARES, str).items()} == groups


def test_the_division_never_changes():
    parts = carve_groups(range(20), SHARES, str)
    assert (parts["dev"], parts["test"]) == ([2, 15], [5, 6])


def test_running_text_is_cut_in_order():
    parts = carve_in_order(list(range(100)), {"train": 0.9, "dev": 0.05, "test": 0.05})
    assert (parts["train"][-1], parts["dev"], parts["test"][0]) == (89, [90, 91, 92, 93, 94], 95)


def test_a_smaller_sample_is_part_of_a_larger_one():
    small, large = sample(1000, 10), sample(1000, 100)
    assert set(small) < set(large)
    assert small == sorted(small)
    assert max(large) > 900
    assert min(large) < 100
    assert sample(5, None) == sample(5, 9) == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match="limit `0` leaves no rows"):
        sample(5, 0)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"), ("validation", "dev"), ("my-val", "dev"), ("en_ewt-ud-test", "test"), ("Dev_set", "dev"),
        ("trainer", None), ("latest", None), ("train_test", None), ("test-00000-of-00002", "test"),
    ],
)  # fmt: skip
def test_names_of_splits(name, split):
    assert split_in_name(name) == split


def test_splits_asked_for_are_checked():
    assert check_splits(["dev", "dev"]) == ("dev",)
    with pytest.raises(DataError, match="split `validation` is not known; give some of: train, dev, test"):
        check_splits(["validation"])
    with pytest.raises(DataError, match="no split was asked for"):
        check_splits([])
