from __future__ import annotations

import json

import numpy as np
import pytest

from slimformer.errors import DataError
from slimformer.tasks import get_task
from slimformer.tasks.kinds.tagging import iob2, last_pieces


@pytest.fixture
def load(write):
    def load_rows(*rows, **options):
        content = "\n".join(json.dumps({"tokens": tokens, "ner_tags": tags}) for tokens, tags in rows)
        return get_task("tagging").load(write("dev.jsonl", content), ["dev"], **options)

    return load_rows


def one_hot(features, labels, length=None):
    length = length or max(len(item["input_ids"]) for item in features)
    logits = np.zeros((len(features), length, len(labels)))
    for row, item in zip(logits, features, strict=True):
        for position, tag in enumerate(item["labels"]):
            row[position, max(tag, 0)] = 1
    return logits


def test_the_label_of_a_word_is_on_its_last_piece(load, pieces):
    data = load((["ab", "c", "def"], ["B-X", "I-X", "O"]), (["x"], ["O"]))
    assert data.labels == ["O", "B-X", "I-X"]
    item = data.prepare("dev", pieces, max_length=20)[0]
    # [CLS] a ##b c d ##e ##f [SEP]
    assert item["labels"].tolist() == [-100, -100, 1, 2, -100, -100, 0, -100]
    batch = data.collator(pieces)(data.prepare("dev", pieces, max_length=20)[:2])
    assert batch["labels"][1].tolist() == [-100, 0, *[-100] * 6]


def test_perfect_predictions_score_one(load, pieces):
    data = load((["ab", "c", "def"], ["B-X", "I-X", "O"]), (["x"], ["O"]))
    features = data.prepare("dev", pieces)
    # A longer batch elsewhere pads these predictions on the right.
    for length in (None, 30):
        measured = data.compute_metrics("dev", features, one_hot(features, data.labels, length))
        assert measured == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "accuracy": 1.0}


def test_words_that_are_cut_off_or_dropped_count_as_wrong(load, pieces):
    data = load((["ab", "", "c", "d", "e"], ["O", "O", "B-X", "O", "B-X"]), (["x"], ["B-X"]))
    features = data.prepare("dev", pieces, max_length=6)  # [CLS] a ##b c d [SEP]: no piece of the empty word, none of e
    assert features.extra[0].tolist() == [2, -1, 3, 4, -1]
    measured = data.compute_metrics("dev", features, one_hot(features, data.labels))
    assert measured["accuracy"] == pytest.approx(4 / 6)
    assert measured["recall"] == pytest.approx(2 / 3)
    assert measured["precision"] == 1.0


def test_left_padding_tokenizers_are_padded_on_the_right(load, pieces):
    data = load((["ab"], ["A"]), (["c"], ["B"]))
    pieces.padding_side = "left"
    try:
        batch = data.collator(pieces)(data.prepare("dev", pieces)[:2])
    finally:
        pieces.padding_side = "right"
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_metrics_follow_the_tags(load):
    assert load((["a"], ["NOUN"]), (["b"], ["VERB"])).metrics == ("accuracy",)
    assert load((["a"], ["B-X"]), (["b"], ["O"])).primary_metric == "f1"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((["a", "b"], ["O"]), r"dev.jsonl` line 2: 2 words but 1 tags"),
        (("a b", ["O"]), r"dev.jsonl` line 2: column `tokens` holds `a b`; give a list"),
        (([], []), r"dev.jsonl` line 2: column `tokens` holds `\[\]`"),
        ((["a"], [""]), r"dev.jsonl` line 2: the label in column `ner_tags` is empty"),
    ],
)
def test_rows_are_checked(load, row, message):
    with pytest.raises(DataError, match=message):
        load((["a"], ["O"]), row)


def test_a_tag_that_is_not_on_the_list_is_named(load):
    with pytest.raises(DataError, match=r"dev.jsonl` line 1: label `B-Y` is not one of `O`, `B-X`"):
        load((["a"], ["B-Y"]), labels=["O", "B-X"])


def test_columns_of_conll_files_can_be_chosen(write):
    path = write("dev.conll", "EU NNP B-ORG\nwins VBZ O\n")
    assert get_task("tagging").load(path, ["dev"]).labels == ["O", "B-ORG"]
    assert get_task("tagging").load(path, ["dev"], label_column="1").labels == ["NNP", "VBZ"]


def test_byte_level_tokenizers_see_the_blanks_between_words(load, letters):
    item = load((["ab", "c"], ["A", "B"])).prepare("dev", letters, max_length=20)[0]
    assert letters.decode(item["input_ids"]) == "ab c"
    assert item["labels"].tolist() == [-100, 0, -100, 1]


def test_iob1_becomes_iob2():
    assert iob2(["I-A", "I-A", "B-A", "I-B", "O", "I-B"]) == ["B-A", "I-A", "B-A", "B-B", "O", "B-B"]
    proper = ["B-A", "I-A", "O", "B-B", "B-B", "I-B"]
    assert iob2(proper) == proper


def test_last_pieces():
    assert last_pieces([None, 0, 0, 2, None], 4).tolist() == [2, -1, 3, -1]
