"""Items in pairs: who is drawn for whom, what is left out, and how pairs become batches."""

from __future__ import annotations

import numpy as np
import pytest

from slimformer.errors import DataError
from slimformer.tasks.features import Features, PaddingCollator, PairCollator, draw_partners, pair

LABELS = ["a", "b", "a", "c", "b", "a"]


def items():
    return Features([{"input_ids": np.full(number + 1, number)} for number in range(len(LABELS))])


def drawn(features):
    return [(int(item["input_ids"][0]), int(item["partner.input_ids"][0])) for item in features]


def test_partners_share_a_label_and_are_never_the_item_itself():
    features = draw_partners(items(), LABELS, seed=0, where="train.tsv")
    assert [first for first, _ in drawn(features)] == [0, 1, 2, 4, 5]  # 3 is the only `c`
    for epoch in range(5):
        features.set_epoch(epoch)
        assert all(LABELS[first] == LABELS[second] and first != second for first, second in drawn(features))
    assert features.lengths == [1, 2, 3, 5, 6]


def test_partners_depend_on_seed_and_epoch_alone():
    def many(seed, epoch):
        features = draw_partners(Features([{"input_ids": np.array([n])} for n in range(40)]), [0, 1] * 20, seed, "x")
        features.set_epoch(epoch)
        return drawn(features)

    assert many(1, 2) == many(1, 2)
    assert many(1, 2) != many(1, 3)
    assert many(1, 2) != many(2, 2)


def test_items_that_have_nobody_are_refused():
    with pytest.raises(DataError, match=r"train.tsv: 6 labels for 6 items, of which 0 have two items or more"):
        draw_partners(items(), list("abcdef"), seed=0, where="train.tsv")
    with pytest.raises(DataError, match=r"1 labels for 6 items, of which 1 have"):
        draw_partners(items(), ["a"] * 6, seed=0, where="train.tsv")


def test_a_batch_has_every_first_item_and_then_every_second():
    first = {"input_ids": np.array([1, 2]), "attention_mask": np.array([1, 1])}
    second = {"input_ids": np.array([3]), "attention_mask": np.array([1])}
    collate = PairCollator(PaddingCollator({"input_ids": 9}))
    batch = collate([pair(first, second, 4), pair(second, first, 5)])
    assert batch["input_ids"].tolist() == [[1, 2], [3, 9], [3, 9], [1, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0], [1, 0], [1, 1]]
    assert batch["labels"].tolist() == [4, 5, 4, 5]
    assert collate([second])["input_ids"].tolist() == [[3]]
