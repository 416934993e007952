from __future__ import annotations

import pickle

import numpy as np
import torch

from slimformer.tasks.features import PaddingCollator, StackingCollator, TensorCollator, padding_collator


def item(*ids, **more):
    return {"input_ids": np.array(ids, np.int32), "attention_mask": np.ones(len(ids), np.int32), **more}


def test_padding_on_either_side():
    items = [item(5, 6, 7, labels=1), item(8, labels=0)]
    right = PaddingCollator({"input_ids": 9})(items)
    assert right["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert right["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert right["labels"].tolist() == [1, 0]
    left = PaddingCollator({"input_ids": 9}, "left")(items)
    assert left["input_ids"].tolist() == [[5, 6, 7], [9, 9, 8]]
    assert left["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert {array.dtype for array in left.values()} == {np.dtype(np.int64)}


def test_numbers_to_regress_on_are_floats():
    assert PaddingCollator({})([item(1, labels=1.0), item(1, labels=0.5)])["labels"].dtype == np.float32


def test_tensors_for_a_model_in_torch():
    items = [item(5, 6, labels=1.5), item(8, labels=0.5)]
    collator = pickle.loads(pickle.dumps(TensorCollator(PaddingCollator({"input_ids": 9}))))
    batch = collator(items)
    assert batch["input_ids"].tolist() == [[5, 6], [8, 9]]
    assert {name: tensor.dtype for name, tensor in batch.items()} == {
        "input_ids": torch.int64,
        "attention_mask": torch.int64,
        "labels": torch.float32,
    }


def test_targets_of_several_labels_are_stacked_as_they_are():
    rows = [item(1, labels=np.array([0, 1], np.float32)), item(1, 2, labels=np.array([1, 1], np.float32))]
    labels = PaddingCollator({"labels": -100})(rows)["labels"]
    assert labels.dtype == np.float32
    assert labels.tolist() == [[0, 1], [1, 1]]


def test_choices_are_padded_together():
    rows = [[np.array([1, 2]), np.array([3])], [np.array([4]), np.array([5, 6, 7])]]
    batch = PaddingCollator({}, choices=True)([{"input_ids": row, "labels": 0} for row in rows])
    assert batch["input_ids"].tolist() == [[[1, 2, 0], [3, 0, 0]], [[4, 0, 0], [5, 6, 7]]]
    assert batch["labels"].shape == (2,)


def test_as_the_tokenizer_pads(pieces, letters):
    collator = pickle.loads(pickle.dumps(padding_collator(pieces)))
    assert (collator.fill["input_ids"], collator.fill["labels"], collator.side) == (0, -100, "right")
    # Without a padding token the end token does; the attention mask hides it.
    assert padding_collator(letters).fill["input_ids"] == letters.eos_token_id
    pieces.padding_side = "left"
    try:
        assert padding_collator(pieces).side == "left"
        assert padding_collator(pieces, side="right").side == "right"
    finally:
        pieces.padding_side = "right"


def test_images_are_stacked():
    images = [{"pixel_values": np.full((3, 2, 2), value, np.float32), "labels": value} for value in (0, 1)]
    batch = pickle.loads(pickle.dumps(StackingCollator()))(images)
    assert batch["pixel_values"].shape == (2, 3, 2, 2)
    assert batch["labels"].tolist() == [0, 1]
