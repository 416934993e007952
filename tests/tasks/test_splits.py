from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import DataError
from slimformer.tasks.readers import Row
from slimformer.tasks.splits import (
    carve_groups,
    carve_in_order,
    check_shares,
    check_splits,
    count_shared,
    parse_shares,
    sample,
    split_in_name,
)

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


#: Parts of 1, by two or three numbers.
shares_of_one = st.lists(st.integers(1, 50), min_size=2, max_size=3).map(
    lambda parts: [part / sum(parts) for part in parts]
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=3, max_size=200), shares_of_one, st.randoms())
def test_shares_are_met_by_groups_whatever_the_order(rows, numbers, chance):
    shares, groups = parse_shares(numbers), len(set(rows))
    try:
        parts = carve_groups(rows, shares, str)
    except DataError:
        # Each part has a group, and the others than the first are rounded to the nearest number of them.
        assert groups <= sum(max(1, round(share * groups)) for share in numbers[1:])
        return
    assert list(parts) == list(shares)
    assert sorted(row for part in parts.values() for row in part) == sorted(rows)
    sizes = {split: len(set(part)) for split, part in parts.items()}
    assert sum(sizes.values()) == groups  # disjoint
    for split, *_ in zip(list(shares)[1:], strict=False):
        assert sizes[split] >= 1
        assert abs(sizes[split] - shares[split] * groups) < 1
    assert abs(sizes["train"] - shares["train"] * groups) < len(shares) - 1
    chance.shuffle(rows)
    again = carve_groups(rows, shares, str)
    assert {split: set(part) for split, part in again.items()} == {split: set(part) for split, part in parts.items()}


@given(shares_of_one)
def test_shares_are_the_same_as_a_text(numbers):
    assert parse_shares(",".join(map(str, numbers))) == parse_shares(numbers)
    assert sum(parse_shares(numbers).values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ("0.8", "give two or three numbers"), ("0.7,0.1,0.1,0.1", "give two or three numbers"),
        ("most,some", "give two or three numbers"), ("0.5,nan", "give two or three numbers"),
        ("0.8,0.1", "they add up to 0.9, not to 1"), ((0.8, 0.3), "they add up to 1.1, not to 1"),
        ("1.1,-0.1", "-0.1 leaves no rows for dev"), ("0.9,0.1,0", "0 leaves no rows for test"),
        (0.9, "give two or three numbers"),
    ],
)  # fmt: skip
def test_shares_that_are_none(shares, message):
    with pytest.raises(DataError, match=rf"shares is `.*`: {message}"):
        check_shares(shares)


def test_texts_that_two_splits_share_are_counted():
    train = [Row({"text": text, "label": "x"}, "train.tsv", 1) for text in ("a", "b ", "c")]
    dev = [Row({"words": text}, "dev.tsv", 1) for text in ("a", "b", "b", "d")]
    assert count_shared(dev, train, ["words"], ["text"]) == 3
    assert count_shared(train, dev, ["text"], ["words"]) == 2
    assert count_shared(dev, [], ["words"], ["text"]) == 0


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
