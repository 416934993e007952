"""Text that uses kept pieces only is split as before, whatever the tokenizer; other text is never an error."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from slimformer.errors import CheckpointError, ConfigError
from slimformer.methods.trim import choose_pieces, compare_tokenizers, count_pieces, pieces_of, trim_tokenizer
from slimformer.methods.trim.vocabulary import close_pieces, open_vocabulary
from tests.methods.trim import toys

AWKWARD = {
    "bpe": toys.random_bpe,
    "bpe, whole words first": lambda seed: toys.random_bpe(seed, ignore_merges=True),
    "bpe, unknown fused": lambda seed: toys.random_bpe(seed, fuse_unk=True),
    "unigram": toys.random_unigram,
    "wordpiece": toys.random_wordpiece,
    "words": toys.random_words,
}
TEXTS = st.lists(st.text("αβγδε", min_size=1, max_size=12), min_size=1, max_size=4).map(" ".join)


def smallest(tokenizer, texts, others=()) -> list[int]:
    """As few pieces as cover some texts, and some others."""
    vocabulary = open_vocabulary(tokenizer)
    needed = {*vocabulary.required(), *tokenizer.all_special_ids, *pieces_of(tokenizer, texts), *others}
    return sorted(close_pieces(vocabulary, needed))


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=True, verbose=False)["input_ids"]


def assert_same(tokenizer, trimmed, kept: list[int], texts) -> None:
    for text in texts:
        assert [kept[piece_id] for piece_id in ids(trimmed, text)] == ids(tokenizer, text), text


@pytest.mark.slow
@pytest.mark.parametrize("kind", AWKWARD)
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), texts=st.lists(TEXTS, min_size=1, max_size=6), other=TEXTS)
def test_any_covered_text_is_split_the_same_by_any_vocabulary(kind, seed, texts, other):
    tokenizer = AWKWARD[kind](seed)
    draw = random.Random(seed)
    every = list(tokenizer.get_vocab().values())
    kept = smallest(tokenizer, texts, draw.sample(every, draw.randint(0, len(every) // 3)))
    trimmed = trim_tokenizer(tokenizer, kept)
    assert_same(tokenizer, trimmed, kept, texts)
    if pieces_of(tokenizer, [other]) <= set(kept):
        assert_same(tokenizer, trimmed, kept, [other])
    assert max(ids(trimmed, other)) < len(kept) == len(trimmed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", toys.CLASSES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_covered_text_is_split_the_same_by_every_class(kind, data):
    tokenizer = toys.tokenizer(kind)
    documents = st.sampled_from(toys.docstrings(40))
    texts = data.draw(st.lists(st.one_of(documents, st.text(max_size=40)), min_size=1, max_size=4))
    others = data.draw(st.sets(st.sampled_from(sorted(tokenizer.get_vocab().values())), max_size=50))
    kept = smallest(tokenizer, texts, others)
    trimmed = trim_tokenizer(tokenizer, kept)
    assert type(trimmed) is type(tokenizer)
    assert_same(tokenizer, trimmed, kept, texts)
    for pair in pairwise(texts):
        assert [kept[piece_id] for piece_id in trimmed(*pair)["input_ids"]] == tokenizer(*pair)["input_ids"]
    other = data.draw(st.text(max_size=40))
    assert all(piece_id < len(kept) for piece_id in ids(trimmed, other))
    if pieces_of(tokenizer, [other]) <= set(kept):
        assert_same(tokenizer, trimmed, kept, [other])


@pytest.mark.slow
@pytest.mark.parametrize("kind", toys.CLASSES)
def test_a_chosen_tokenizer_saved_and_loaded_again_is_the_same(kind, tmp_path):
    tokenizer = toys.tokenizer(kind)
    texts = toys.docstrings(40)
    kept = choose_pieces(tokenizer, count_pieces(tokenizer, texts[::2]), coverage=0.98)
    trimmed = trim_tokenizer(tokenizer, kept)
    assert len(trimmed) == len(kept) < len(tokenizer)
    trimmed.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == trimmed.get_vocab()
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    for text in [*texts, "中文 \x00 \U0001f600 ∀ x"]:
        assert ids(loaded, text) == ids(trimmed, text)
    result = compare_tokenizers(tokenizer, trimmed, kept, texts)
    covered = [text for text in texts if set(ids(tokenizer, text)) <= set(kept)]
    assert len(covered) == result.same
    assert 0 < result.same < result.texts == len(texts)
    assert_same(tokenizer, loaded, kept, covered)


@pytest.mark.parametrize("kind", ["gpt2", "roberta", "llama"])
def test_text_that_is_not_covered_comes_back_from_bytes(kind):
    tokenizer = toys.tokenizer(kind)
    trimmed = trim_tokenizer(tokenizer, smallest(tokenizer, ["a few words"]))
    text = "Zürich 中文 \U0001f600 collections.OrderedDict"
    assert trimmed.decode(trimmed(text, add_special_tokens=False)["input_ids"]).strip() == text


def test_an_unknown_character_stays_as_bad_as_it_was():
    """Were the lowest score to go, an unknown `c` and `de` would beat `cd` and `e`."""
    scores = [("<unk>", 0.0), ("cd", -50.0), ("e", -40.0), ("d", -45.0), ("de", -1.0), ("zz", -100.0)]
    tokenizer = toys.wrap(models.Unigram(scores, unk_id=0))
    kept = smallest(tokenizer, ["cde", "de d e"])
    trimmed = trim_tokenizer(tokenizer, kept)
    assert trimmed.tokenize("cde") == tokenizer.tokenize("cde") == ["cd", "e"]


def test_what_is_merged_on_the_way_stays():
    merges = [("b", "c"), ("a", "bc"), ("a", "b"), ("c", "d"), ("ab", "cd")]
    vocabulary = toys.numbered(["<unk>", "a", "b", "c", "d", "ab", "bc", "cd", "abc", "abcd"])
    tokenizer = toys.wrap(models.BPE(vocabulary, merges, unk_token="<unk>"))
    trimmed = trim_tokenizer(tokenizer, smallest(tokenizer, ["abc"]))
    assert set(trimmed.get_vocab()) == {"<unk>", "<end>", "a", "b", "c", "d", "bc", "abc"}
    assert trimmed.tokenize("abc abcd ab") == ["abc", "abc", "d", "a", "b"]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), texts=st.lists(TEXTS, min_size=2, max_size=6))
def test_what_was_trimmed_can_be_trimmed_again(seed, texts):
    """Characters of kept pieces stay, so that a word is unknown to the second vocabulary if it is to the first."""
    first = toys.random_wordpiece(seed)
    kept = smallest(first, texts)
    second = trim_tokenizer(first, kept)
    for name in second.get_vocab():
        letters = [
            f"##{letter}" if at or name.startswith("##") else letter for at, letter in enumerate(name.strip("#"))
        ]
        assert name.startswith("<") or set(letters) <= second.get_vocab().keys()
    again = smallest(second, texts[:1])
    third = trim_tokenizer(second, again)
    assert_same(first, third, [kept[piece_id] for piece_id in again], texts[:1])


def test_what_stands_around_the_model_stays(tmp_path):
    tokenizer = toys.tokenizer("bert")
    tokenizer = type(tokenizer)(vocab=tokenizer.get_vocab(), model_max_length=64)
    tokenizer.add_tokens(["slimformer", "zq zq"])
    tokenizer.chat_template = "{{ messages }}"
    tokenizer(["a", "b c"], padding="max_length", truncation=True, max_length=9)
    tokenizer.save_pretrained(tmp_path)
    tokenizer = type(tokenizer).from_pretrained(tmp_path)
    kept = choose_pieces(tokenizer, count_pieces(tokenizer, toys.docstrings(5)), coverage=0.9)
    trimmed = trim_tokenizer(tokenizer, kept)
    assert trimmed.chat_template == tokenizer.chat_template
    assert trimmed.model_max_length == 64
    old, new = tokenizer.backend_tokenizer, trimmed.backend_tokenizer
    assert new.truncation == old.truncation == {**old.truncation, "max_length": 9}
    assert new.padding == {**old.padding, "pad_id": trimmed.pad_token_id}
    assert trimmed.tokenize("a slimformer zq zq") == ["a", "slimformer", "zq zq"]  # forgets padding and truncation
    assert trimmed.get_added_vocab().keys() == tokenizer.get_added_vocab().keys()


def test_tokenizers_that_cannot_be_trimmed():
    class Slow:
        is_fast = False

    with pytest.raises(CheckpointError, match="`Slow` is not a fast tokenizer"):
        open_vocabulary(Slow())
    tokenizer = toys.tokenizer("gpt2")
    with pytest.raises(ConfigError, match="there is no piece 900 in the tokenizer of 900 pieces"):
        trim_tokenizer(tokenizer, range(901))
    with pytest.raises(ConfigError, match=r"`!` and \d+ other pieces are missing"):
        trim_tokenizer(tokenizer, [0, 300])


def test_a_class_that_makes_something_else_of_its_file_is_refused():
    class Stubborn(PreTrainedTokenizerFast):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            self.add_tokens([f"<of {len(self)}>"])

    tokenizer = Stubborn(tokenizer_object=toys.random_words(0).backend_tokenizer, unk_token="<unk>", pad_token="<end>")
    with pytest.raises(
        ConfigError, match="`Stubborn` does not load with other pieces: its class changes `added_tokens`"
    ):
        trim_tokenizer(tokenizer, smallest(tokenizer, ["a"]))


@pytest.mark.slow
def test_a_real_decoder(stories):
    tokenizer = AutoTokenizer.from_pretrained(stories)
    texts = toys.docstrings(60)
    kept = choose_pieces(tokenizer, count_pieces(tokenizer, texts), coverage=0.99)
    trimmed = trim_tokenizer(tokenizer, kept)
    result = compare_tokenizers(tokenizer, trimmed, kept, texts)
    assert 0 < sum(set(ids(tokenizer, text)) <= set(kept) for text in texts) == result.same < len(texts)
    assert 0.99 <= result.kept / result.tokens < 0.9925
    assert result.unknown_after == 0
    assert len(kept) < 9000
