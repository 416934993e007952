"""Texts of like length in one batch: none lost, hardly padded, and the same whoever asks for an example."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.corpus import open_corpus
from slimformer.corpus.order.grouping import BATCHES, MOST, GroupedStream
from slimformer.corpus.stream import Stream
from slimformer.errors import ConfigError
from slimformer.methods.adapt.config import AdaptConfig
from tests.corpora import making
from tests.corpora.making import ids

WORDS = making.words(20000)


class Numbered(Stream):
    """Example n begins with n and is of a random length."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def epoch_size(self) -> int:
        return 1000

    def collator(self):
        raise AssertionError

    def _example(self, number: int):
        length = int(np.random.default_rng([self.seed, number]).integers(1, 60))
        return {"input_ids": np.full(length, number, np.int32)}


def numbers(stream: Stream, start: int, count: int) -> list[int]:
    return [int(stream[number]["input_ids"][0]) for number in range(start, start + count)]


@given(st.integers(1, 2 * MOST), st.integers(0, 5), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_every_example_comes_once_within_its_stretch(batch, stretch, seed):
    length = batch * max(1, min(BATCHES, MOST // batch))
    grouped = GroupedStream(Numbered(seed), batch, seed)
    first = stretch * length
    assert sorted(numbers(grouped, first, length)) == list(range(first, first + length))
    assert length <= max(batch, MOST)
    again = GroupedStream(Numbered(seed), batch, seed)
    for number in random.Random(seed).sample(range(first, first + length), min(3, length)):  # as a resumed run asks
        assert (again[number]["input_ids"] == grouped[number]["input_ids"]).all()


def test_batches_are_of_like_length_and_in_random_order():
    batch, count = 8, 8 * BATCHES
    lengths = np.array([len(GroupedStream(Numbered(0), batch, 0)[n]["input_ids"]) for n in range(count)])
    longest = lengths.reshape(-1, batch).max(1)
    assert longest.sum() * batch < 1.1 * lengths.sum()  # random batches are padded by some 70 %
    assert (np.diff(longest) < 0).any()
    assert (np.diff(longest) > 0).any()
    other = [len(GroupedStream(Numbered(0), batch, 1)[n]["input_ids"]) for n in range(count)]
    assert sorted(other) == sorted(lengths)
    assert other != lengths.tolist()


def test_blocks_of_a_corpus_are_read_one_after_the_other(write):
    documents = making.unique_documents([1 + number % 29 for number in range(600)])
    corpus, counting = making.counted(open_corpus(write("text.txt", "\n".join(documents))))
    stream = corpus.stream(WORDS, 32, seed=3, pack=False, buffer=1500)
    grouped = GroupedStream(stream, 4, 3)
    plain = corpus.stream(WORDS, 32, seed=3, pack=False, buffer=1500)
    assert sorted(ids(grouped, 400)) == sorted(ids(plain, 400))
    assert grouped.epoch_size() == plain.epoch_size() == 600
    counting.reads.clear()
    fresh = GroupedStream(corpus.stream(WORDS, 32, seed=3, pack=False, buffer=1500), 4, 3)
    ids(fresh, 600)
    assert len(counting.reads) == len(set(counting.reads))


def test_packed_texts_are_all_as_long_so_grouping_is_refused():
    with pytest.raises(ConfigError, match="`group_by_length` is True and changes nothing without texts that are not"):
        AdaptConfig.make({"model": "minilm", "corpus": ["text.txt"], "pack": True, "group_by_length": True})
