from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from slimformer import models
from slimformer.errors import ConfigError
from slimformer.tasks.features import Features
from slimformer.tasks.masking import PatchMasking, TokenMasking, WordDeletion
from tests import corpus

MASKING = TokenMasking(mask=4, vocabulary=1000, special=(0, 1, 2, 3, 4), seed=7)
BLOCK = {"input_ids": np.array([2, *range(100, 298), 3], np.int32), "attention_mask": np.ones(200, np.int32)}


def test_masks_depend_on_seed_epoch_and_index_and_on_nothing_else():
    features = Features([BLOCK, BLOCK], transform=MASKING)
    first = features[0]
    features[1]
    assert (features[0]["input_ids"] == first["input_ids"]).all()
    assert (features[1]["input_ids"] != first["input_ids"]).any()
    features.set_epoch(1)
    assert (features[0]["input_ids"] != first["input_ids"]).any()
    features.set_epoch(0)
    assert (features[-2]["labels"] == first["labels"]).all()
    other = TokenMasking(mask=4, vocabulary=1000, special=(0, 1, 2, 3, 4), seed=8)
    assert (other(BLOCK, 0, 0)["input_ids"] != first["input_ids"]).any()


def test_shares_are_those_of_bert():
    chosen = masked = kept = special = 0
    for index in range(400):
        item = MASKING(BLOCK, index, 0)
        picked = item["labels"] != -100
        assert (item["labels"][picked] == BLOCK["input_ids"][picked]).all()
        assert (item["input_ids"][~picked] == BLOCK["input_ids"][~picked]).all()
        chosen += picked.sum()
        masked += (item["input_ids"][picked] == 4).sum()
        kept += (item["input_ids"][picked] == BLOCK["input_ids"][picked]).sum()
        special += picked[[0, -1]].sum()
    assert special == 0
    assert abs(chosen / (400 * 198) - 0.15) < 0.01
    assert abs(masked / chosen - 0.8) < 0.02
    assert abs(kept / chosen - 0.1) < 0.02


def test_at_least_one_token_is_predicted():
    short = {"input_ids": np.array([2, 50, 51, 3], np.int32)}
    assert all((MASKING(short, index, 0)["labels"] != -100).any() for index in range(50))
    nothing = {"input_ids": np.array([2, 3], np.int32)}
    assert (MASKING(nothing, 0, 0)["labels"] == -100).all()


def test_hidden_tokens_may_always_be_masked():
    masking = TokenMasking(mask=4, vocabulary=1000, special=(0, 1, 2, 3, 4), seed=7, share=0.4, way="mask")
    for index in range(50):
        item = masking(BLOCK, index, 0)
        picked = item["labels"] != -100
        assert (item["input_ids"][picked] == 4).all()
        assert (item["input_ids"][~picked] == BLOCK["input_ids"][~picked]).all()
        assert 0.2 < picked.mean() < 0.6


def test_whole_words_are_hidden():
    tokenizer = models.load_processor("minilm")
    text = "unbelievably, the tokenization of electroencephalography is quintessentially intricate"
    encoded = tokenizer(text)
    item = {"input_ids": np.array(encoded["input_ids"], np.int32)}
    words = encoded.word_ids()
    masking = TokenMasking.of(tokenizer, seed=3, share=0.3, way="words")
    hidden = set()
    for index in range(100):
        picked = masking(item, index, 0)["labels"] != -100
        assert picked.any()
        for word in {word for word in words if word is not None}:
            of_word = [bool(picked[place]) for place, each in enumerate(words) if each == word]
            assert len(set(of_word)) == 1
            hidden |= {word} if of_word[0] else set()
    assert hidden == {word for word in words if word is not None}


def test_a_tokenizer_that_marks_no_words_is_refused():
    tokenizer = corpus.tokenizer()
    with pytest.raises(ConfigError, match="does not tell where a word starts"):
        TokenMasking.of(tokenizer, seed=0, way="words")


def test_patches_depend_on_seed_epoch_and_index_and_on_nothing_else():
    masking = PatchMasking(196, seed=7)
    image = {"pixel_values": np.zeros((3, 4, 4), np.float32)}
    item = masking(image, 5, 2)
    assert item["pixel_values"] is image["pixel_values"]
    assert item["noise"].dtype == np.float32
    assert len(set(item["noise"].tolist())) == 196  # no two patches can change places
    assert 0 <= item["noise"].min() < item["noise"].max() < 1
    assert (PatchMasking(196, seed=7)({}, 5, 2)["noise"] == item["noise"]).all()
    for other in (masking({}, 6, 2), masking({}, 5, 3), PatchMasking(196, seed=8)({}, 5, 2)):
        assert (other["noise"] != item["noise"]).any()


def test_every_patch_is_hidden_as_often_as_any_other():
    masking = PatchMasking(16, seed=0)
    kept = sum((masking({}, index, 0)["noise"] < 0.25).astype(int) for index in range(4000))
    assert kept.sum() == 4 * 4000
    assert abs(kept / 4000 - 0.25).max() < 0.035  # five standard deviations


def test_the_same_patches_are_hidden_in_another_process():
    code = "from slimformer.tasks.masking import PatchMasking; print(PatchMasking(9, 3)({}, 4, 5)['noise'].tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(PatchMasking(9, 3)({}, 4, 5)["noise"].tolist())


def deletion(share: float = 0.6, seed: int = 7) -> WordDeletion:
    return WordDeletion((0, 1, 2, 3, 4), seed, np.zeros(1000, bool), share)


def test_deleted_words_depend_on_seed_and_index_and_on_nothing_else():
    first = deletion()(BLOCK, 0, 0)
    deletion()(BLOCK, 1, 0)
    again = deletion()({name: value.copy() for name, value in BLOCK.items()}, 0, 0)
    assert all((again[name] == value).all() for name, value in first.items())
    for other in (deletion()(BLOCK, 1, 0), deletion(seed=8)(BLOCK, 0, 0), deletion()(BLOCK, 0, 1)):
        assert other["input_ids"].tolist() != first["input_ids"].tolist()


def test_a_share_of_the_words_is_deleted_and_the_rest_keeps_its_order():
    left = 0
    for index in range(200):
        item = deletion()(BLOCK, index, 0)
        assert item["labels"].tolist() == BLOCK["input_ids"].tolist()
        assert item["input_ids"][[0, -1]].tolist() == [2, 3]
        assert (np.diff(item["input_ids"][1:-1]) > 0).all()
        assert item["attention_mask"].shape == item["input_ids"].shape
        left += len(item["input_ids"]) - 2
    assert abs(left / (200 * 198) - 0.4) < 0.01


def test_one_word_stays():
    short = {name: value[[0, 1, 2, -1]] for name, value in BLOCK.items()}
    lengths = {len(deletion(0.99)(short, index, 0)["input_ids"]) for index in range(100)}
    assert min(lengths) == 3
    nothing = {name: value[[0, -1]] for name, value in BLOCK.items()}
    assert deletion()(nothing, 0, 0)["input_ids"].tolist() == [2, 3]


def test_words_are_deleted_whole():
    tokenizer = models.load_processor("minilm")
    text = "unbelievably, the tokenization of electroencephalography is quintessentially intricate"
    encoded = tokenizer(text)
    item = {name: np.array(encoded[name], np.int32) for name in ("input_ids", "attention_mask")}
    words = [tokenizer.decode([number]) for number in item["input_ids"]]
    assert any(word.startswith("##") for word in words)
    seen = set()
    for index in range(60):
        left = WordDeletion.of(tokenizer, 0)(item, index, 0)["input_ids"].tolist()
        rest = tokenizer.decode(left, skip_special_tokens=True)
        assert "##" not in rest
        seen |= set(rest.replace(",", " ").split())
    assert seen == set(text.replace(",", " ").split())


def test_without_marks_each_token_is_a_word():
    tokenizer = corpus.tokenizer()
    deleting = WordDeletion.of(tokenizer, 0)
    assert not deleting.continues.any()
    item = {name: np.array(value, np.int32) for name, value in tokenizer("the film was not bad").items()}
    lengths = {len(deleting(item, index, 0)["input_ids"]) for index in range(40)}
    assert len(lengths) > 2
