"""The stream: every token once an epoch, in an order of its own, the same however it is read."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from slimformer.corpus import open_corpus
from tests.corpora import making
from tests.corpora.making import OPEN, PART, ids, text_of

WORDS = making.words()
BYTES = making.gpt2()


@pytest.fixture
def corpus(write):
    rng = random.Random(0)
    documents = making.unique_documents([rng.randint(1, 30) for _ in range(150)])
    return open_corpus(write("a.txt", "\n".join(documents)), segment=256)


def epoch(stream) -> list[list[int]]:
    return ids(stream, stream.epoch_size())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(3, 40),
    st.sampled_from([32, 200, 2000]),
    st.sampled_from([1, 300, 10**6]),
    st.integers(0, 3),
)
@pytest.mark.slow
def test_packed_documents_come_once_and_whole(lengths, length, segment, buffer, seed):
    documents = making.unique_documents(lengths)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_text("\n".join(documents))
        corpus = open_corpus(path, segment=segment)
        stream = corpus.stream(WORDS, length, seed=seed, buffer=buffer)
        examples = epoch(stream)
        pieces = list(corpus.documents())  # a line longer than a segment comes in several
    last_words = {WORDS(piece)["input_ids"][-2] for piece in pieces}
    first_words = {WORDS(piece)["input_ids"][1] for piece in pieces}
    seen = []
    for tokens in examples:
        assert tokens[0] == OPEN
        assert tokens[-1] == PART
        body = tokens[1:-1]
        assert body
        assert PART not in (body[0], body[-1])
        for left, right in itertools.pairwise(body):
            if right == PART:
                assert left in last_words
            elif left == PART:
                assert right in first_words
            else:
                assert right == left + 1
        seen += [token for token in body if token != PART]
    assert sorted(seen) == list(range(4, 4 + sum(lengths)))
    short = sum(len(tokens) < length - 1 for tokens in examples)
    assert short <= stream._order.blocks  # one a block
    assert max(map(len, examples)) <= length


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=30), min_size=1, max_size=30),
    st.sampled_from([16, 64, 1000]),
    st.sampled_from([1, 100, 10**6]),
)
def test_single_documents_of_any_text_come_once(texts, segment, buffer):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_text("\n".join(["first", *texts]), newline="")
        corpus = open_corpus(path, segment=segment)
        stream = corpus.stream(BYTES, 1000, pack=False, buffer=buffer)
        for start in (0, stream.epoch_size()):
            found = [text_of(BYTES, tokens) for tokens in ids(stream, stream.epoch_size(), start)]
            assert sorted(found) == sorted(corpus.documents())


def test_documents_are_cut_when_each_is_an_example(corpus):
    stream = corpus.stream(WORDS, 12, pack=False)
    whole = [WORDS(document)["input_ids"] for document in corpus.documents()]
    cut = [tokens if len(tokens) <= 12 else [*tokens[:11], PART] for tokens in whole]
    assert sorted(epoch(stream)) == sorted(cut)


def test_documents_that_just_fit_fill_one_example_each(write):
    path = write("a.txt", "\n".join(making.unique_documents([6] * 20)))
    examples = epoch(open_corpus(path).stream(WORDS, 8))
    assert sorted(examples) == [[OPEN, *range(4 + 6 * n, 10 + 6 * n), PART] for n in range(20)]


def test_documents_in_a_file_stay_neighbours(write):
    path = write("a.txt", "\n".join(making.unique_documents([3, 2, 4])))
    (tokens,) = epoch(open_corpus(path).stream(WORDS, 20))
    assert tokens == [OPEN, 4, 5, 6, PART, 7, 8, PART, 9, 10, 11, 12, PART]


def test_order_differs_between_epochs_and_seeds_and_is_kept_otherwise(corpus):
    stream = corpus.stream(WORDS, 16, buffer=1000, pack=False)
    size = stream.epoch_size()
    first, second = ids(stream, size), ids(stream, size, size)
    assert first != second
    assert sorted(first) == sorted(second)
    assert ids(corpus.stream(WORDS, 16, buffer=1000, pack=False), 2 * size) == first + second
    other = ids(corpus.stream(WORDS, 16, buffer=1000, pack=False, seed=1), size)
    assert other != first
    assert sorted(other) == sorted(first)


def test_neither_the_order_of_the_file_nor_that_of_segments_remains(corpus):
    stream = corpus.stream(WORDS, 64, buffer=1000, pack=False)
    begins = [tokens[1] for tokens in epoch(stream)]
    far = np.abs(np.diff(begins))
    assert begins != sorted(begins)
    assert np.median(far) > 60  # neighbours in the file are about 15 words apart


def test_random_access_equals_sequential_access(corpus):
    stream = corpus.stream(WORDS, 16, buffer=600)
    in_order = ids(stream, 3 * stream.epoch_size())
    numbers = list(range(len(in_order)))
    random.Random(1).shuffle(numbers)
    fresh = corpus.stream(WORDS, 16, buffer=600)
    for number in numbers[:150]:
        assert fresh[number]["input_ids"].tolist() == in_order[number]


def test_several_processes_read_what_one_does(corpus):
    one = ids(corpus.stream(WORDS, 16, buffer=600), 120)
    ranks = [corpus.stream(WORDS, 16, buffer=600) for _ in range(3)]
    assert [ranks[number % 3][number]["input_ids"].tolist() for number in range(120)] == one


def test_blocks_are_read_once_on_the_way_forward(corpus):
    corpus, counting = making.counted(corpus)
    stream = corpus.stream(WORDS, 16, buffer=600)
    size = stream.epoch_size()
    assert sorted(counting.reads) == list(range(len(corpus.sizes)))
    counting.reads.clear()
    for number in range(size):
        stream[number]
    assert sorted(counting.reads) == list(range(len(corpus.sizes)))
    held = [len(stream._order.segments(block)) for block in range(stream._order.blocks)]
    assert max(held) <= 4  # 600 bytes in segments of 256, and one more where it begins late


def test_the_number_of_blocks_follows_from_bytes_and_not_from_files(write, tmp_path):
    for number in range(300):
        write(f"{number}.txt", f"w{number} w{number + 300}\n")
    stream = open_corpus(tmp_path).stream(WORDS, 12)
    assert stream._order.blocks == 1
    assert sum(len(tokens) < 11 for tokens in epoch(stream)) <= 1


def test_the_rest_of_a_block_is_one_short_example(write):
    path = write("a.txt", "\n".join(making.unique_documents([25])))
    assert sorted(map(len, epoch(open_corpus(path).stream(WORDS, 12)))) == [7, 12, 12]


def test_a_view_is_a_sequence(corpus):
    stream = corpus.stream(WORDS, 16)
    view = stream.first(10)
    assert len(view) == len(list(view)) == 10
    assert view[-1]["input_ids"].tolist() == stream[9]["input_ids"].tolist()
    assert [item["input_ids"].tolist() for item in view[2:5]] == ids(stream, 3, 2)
    with pytest.raises(IndexError):
        view[10]
    with pytest.raises(IndexError, match="example -1 was asked for"):
        stream[-1]
    assert len(stream.first(3 * stream.epoch_size())) == 3 * stream.epoch_size()


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders_read_a_view(corpus, workers):
    stream = corpus.stream(WORDS, 16, buffer=600)
    loader = DataLoader(stream.first(40), 8, collate_fn=stream.collator(), num_workers=workers)
    batches = list(loader)
    assert len(batches) == 5
    rows = [row[mask.bool()].tolist() for each in batches for row, mask in zip(*each.values(), strict=True)]
    assert rows == ids(stream, 40)
    assert all(batch["input_ids"].dtype == torch.int64 for batch in batches)


def test_padding_goes_to_the_side_of_the_tokenizer(corpus):
    tokenizer = making.words()
    tokenizer.padding_side = "left"
    stream = corpus.stream(tokenizer, 16, pack=False)
    items = sorted(stream.first(20), key=lambda item: len(item["input_ids"]))
    batch = stream.collator()([items[0], items[-1]])
    assert len(items[0]["input_ids"]) < len(items[-1]["input_ids"])
    assert batch["input_ids"][0, 0] == making.PAD
    assert batch["attention_mask"][0].tolist() == sorted(batch["attention_mask"][0].tolist())


def test_examples_are_small_arrays_of_their_own(corpus):
    stream = corpus.stream(WORDS, 16)
    item = stream[0]
    assert list(item) == ["input_ids", "attention_mask"]
    assert item["input_ids"].dtype == item["attention_mask"].dtype == np.int32
    before = item["input_ids"].tolist()
    item["input_ids"][:] = 0
    assert stream[0]["input_ids"].tolist() == before


def test_a_stream_pickles_to_workers(corpus):
    stream = corpus.stream(WORDS, 16)
    assert ids(pickle.loads(pickle.dumps(stream)), 5) == ids(stream, 5)


def test_documents_longer_than_a_call_are_one_document(write):
    text = " ".join(making.unique_documents([4000] * 20)[:1] * 20)
    assert len(text) > 2**18
    stream = open_corpus(write("a.jsonl", f'{{"text": "{text}"}}')).stream(WORDS, 12)
    tokens = [token for tokens in epoch(stream) for token in tokens[1:-1]]
    assert PART not in tokens
    assert making.UNKNOWN not in tokens
    assert len(tokens) == 20 * 4000
    whole = open_corpus(write("b.jsonl", f'{{"text": "{text}"}}')).stream(WORDS, 12, pack=False)
    assert epoch(whole) == [[OPEN, *range(4, 14), PART]]


def test_no_character_of_a_long_document_is_lost(write):
    text = "naïve word " * 30_000 + "€" * 300_000 + "end"
    stream = open_corpus(write("a.jsonl", json.dumps({"text": text}))).stream(BYTES, 10**7, pack=False)
    assert text_of(BYTES, stream[0]["input_ids"]) == text


def test_an_estimate_of_a_small_corpus_is_exact(corpus):
    documents = list(corpus.documents())
    extent = corpus.estimate(WORDS)
    assert extent.documents == len(documents)
    assert extent.tokens == sum(len(WORDS(document)["input_ids"]) - 2 for document in documents)


def test_an_estimate_of_a_large_corpus_looks_at_a_part_of_it(write):
    documents = [f"{number:07d} " + "w " * 30 for number in range(20_000)]
    large = open_corpus(write("a.txt", "\n".join(documents)))
    extent = large.estimate(BYTES)
    assert extent.documents == pytest.approx(20_000, rel=0.02)
    whole = sum(len(BYTES(document)["input_ids"]) for document in documents[:100]) * 200
    assert extent.tokens == pytest.approx(whole, rel=0.05)
