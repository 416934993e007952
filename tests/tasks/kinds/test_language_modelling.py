from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from slimformer.errors import DataError
from slimformer.models import IGNORED
from slimformer.tasks import get_task
from slimformer.tasks.kinds import kind_of
from slimformer.tasks.splits import Split
from tests import corpus


def load(path, **options):
    return get_task("language-modelling").load(path, ["train"], **options)


def test_lines_of_a_text_are_one_document(write, letters):
    text = "First line,\n\nthird line.\nEnd"
    data = load(write("train.txt", text))
    assert len(data["train"]) == 4
    features = data.prepare("train", letters, max_length=8)
    joined = np.concatenate([item["input_ids"] for item in features])
    assert letters.decode(joined[:-1]) == text
    assert joined[-1] == letters.eos_token_id
    assert {len(item["input_ids"]) for item in features[:-1]} == {8}
    assert all((item["labels"] == item["input_ids"]).all() for item in features)


def test_rows_of_a_table_are_a_document_each(write, letters):
    data = load(write("train.jsonl", '{"text": "ab"}\n{"text": "cd"}\n'))
    ids = data.prepare("train", letters, max_length=100)[0]["input_ids"]
    assert letters.decode(ids) == "ab<end>cd<end>"


def test_padding_is_not_predicted(write, letters):
    data = load(write("train.txt", "abcdefghij"))
    batch = data.collator(letters)(data.prepare("train", letters, max_length=8)[:])
    assert batch["labels"][1].tolist()[3:] == [-100] * 5
    assert batch["attention_mask"][1].tolist() == [1] * 3 + [0] * 5


def test_masked_blocks_are_wrapped_and_change_with_the_epoch(write, pieces):
    data = load(write("train.txt", "the cat sat on the mat " * 20), objective="masked")
    assert data.model_class().__name__ == "AutoModelForMaskedLM"
    features = data.prepare("train", pieces, max_length=32, seed=3)
    again = data.prepare("train", pieces, max_length=32, seed=3)
    first = features[0]
    assert (first["input_ids"] == again[0]["input_ids"]).all()
    assert first["input_ids"][0] == pieces.cls_token_id
    assert first["input_ids"][-1] == pieces.sep_token_id
    again.set_epoch(1)
    assert (first["input_ids"] != again[0]["input_ids"]).any()
    assert "labels" in data.collator(pieces)(features[:])


def test_a_tokenizer_without_a_mask_is_refused(write, letters):
    with pytest.raises(DataError, match="has no mask token; use the objective `causal`"):
        load(write("train.txt", "text"), objective="masked").prepare("train", letters)


def test_a_single_text_is_divided_in_order_and_limited_from_the_front(write):
    path = write("book.txt", "\n".join(f"line {number}" for number in range(100)))
    data = get_task("language-modelling").load(path)
    assert [row["text"] for row in data["dev"]] == [f"line {number}" for number in range(90, 100)]
    limited = get_task("language-modelling").load(path, limit=5)
    assert [row["text"] for row in limited["train"]] == [f"line {number}" for number in range(5)]


def test_perplexity_of_a_uniform_model_is_its_vocabulary(write, letters):
    data = load(write("train.txt", "abcdefghijklmnop"))
    features = data.prepare("train", letters, max_length=8)
    batch = data.collator(letters)(features[:])
    reduced = data.outputs(
        {"logits": torch.zeros(*batch["labels"].shape, 50)}, {"labels": batch["labels"].clamp(max=49)}
    )
    measured = data.compute_metrics("train", features, reduced.numpy())
    assert measured["perplexity"] == pytest.approx(50, rel=1e-4)
    assert (data.primary_metric, data.greater_is_better) == ("perplexity", False)


def test_lambada_predicts_the_last_word_only(shared_data, write, letters):
    path = write("lambada_test.jsonl", json.dumps({"text": "the cat sat on the mat"}))
    data = get_task("lambada").load(path, ["test"])
    features = data.prepare("test", letters, max_length=10)
    item = features[0]
    assert letters.decode(item["input_ids"]) == "on the mat"
    predicted = item["labels"] != -100
    assert letters.decode(item["input_ids"][predicted]) == "mat"
    batch = data.collator(letters)(features[:])
    logits = torch.nn.functional.one_hot(batch["input_ids"].roll(-1, 1), len(letters)).float() * 50
    assert data.compute_metrics("test", features, data.outputs({"logits": logits}, batch))["last_word_accuracy"] == 1.0
    logits[0, -2] = 0  # the last letter is wrong, so the word is
    assert data.compute_metrics("test", features, data.outputs({"logits": logits}, batch))["last_word_accuracy"] == 0.0


def test_one_word_is_no_passage(write):
    with pytest.raises(DataError, match=r"lambada_test.jsonl` line 1: `word` is one word"):
        get_task("lambada").load(write("lambada_test.jsonl", '{"text": "word"}'), ["test"])


@pytest.mark.parametrize("words", [3, 30, 200])
def test_a_prompt_keeps_what_begins_every_text_however_long_it_is(words):
    """The end of the text is gone on with, after the token that the model has seen before every text."""
    tokenizer = corpus.tokenizer()  # begins with [CLS], ends with [SEP]
    text = " ".join(corpus.WORDS[n % len(corpus.WORDS)] for n in range(words))
    kind = kind_of("language-modelling", {"objective": "causal", "max_new_tokens": 8})
    (item,) = kind.inputs(Split([{"text": text}], [("request", 1)]), tokenizer, 32)
    ids = item["input_ids"].tolist()
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == [tokenizer.cls_token_id, *plain[-23:]]
    assert len(item["attention_mask"]) == len(ids) <= 24


def test_a_long_passage_keeps_what_begins_every_text():
    tokenizer = corpus.tokenizer()
    text = " ".join(corpus.WORDS[n % len(corpus.WORDS)] for n in range(60))
    kind = kind_of("last-word")
    (item,) = kind.features(Split([{"text": text, "word": text.split()[-1]}], [("file", 1)]), tokenizer, 16, 0)
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert item["input_ids"].tolist() == [tokenizer.cls_token_id, *plain[-15:]]
    assert item["labels"].tolist() == [IGNORED] * 15 + plain[-1:]
