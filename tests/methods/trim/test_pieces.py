"""Counting and choosing pieces, and what the choice does to texts."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from slimformer.corpus import open_corpus
from slimformer.errors import ConfigError, DataError
from slimformer.methods.trim import (
    TextCoverage,
    TrimConfig,
    TrimReport,
    choose_pieces,
    compare_tokenizers,
    count_pieces,
    pieces_of,
    trim_tokenizer,
)
from slimformer.methods.trim.vocabulary import open_vocabulary
from tests.methods.trim import toys
from tests.parameters import slow


@pytest.mark.slow
@pytest.mark.parametrize("kind", toys.CLASSES)
def test_counts_are_those_of_the_tokenizer(kind):
    tokenizer = toys.tokenizer(kind)
    texts = toys.docstrings(40)
    counts = count_pieces(tokenizer, iter(texts))
    expected = Counter(
        piece_id for text in texts for piece_id in tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    )
    assert {piece_id: int(count) for piece_id, count in enumerate(counts) if count} == expected
    assert len(counts) == len(tokenizer)


@pytest.mark.slow
def test_counting_takes_as_much_memory_for_much_text_as_for_little(tmp_path):
    tokenizer = toys.tokenizer("bert")
    text = "\n".join(text.replace("\n", " ") for text in toys.docstrings(20)) + "\n"
    peaks = []
    for size in (2**20, 2**22):
        path = tmp_path / f"{size}.txt"
        path.write_text(text * (size // len(text)))
        tracemalloc.start()
        count_pieces(tokenizer, open_corpus(path).documents())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", toys.CLASSES)
@pytest.mark.parametrize("coverage", [0.9, 0.99, 1.0])
def test_coverage_is_reached_and_not_by_more_than_needed(kind, coverage):
    tokenizer = toys.tokenizer(kind)
    counts = count_pieces(tokenizer, toys.docstrings(20))
    kept = choose_pieces(tokenizer, counts, coverage=coverage)
    assert kept == sorted(set(kept))
    assert counts[kept].sum() >= coverage * counts.sum()
    dropped = set(range(len(counts))) - set(kept)
    assert coverage < 1 or not counts[sorted(dropped)].any()
    # Pieces stay by how often they occur, unless something else needs them.
    vocabulary = open_vocabulary(tokenizer)
    needed = {part for piece_id in kept for part in vocabulary.parts(piece_id) if part != piece_id}
    characters = {part for piece_id in np.flatnonzero(counts) for part in vocabulary.characters(int(piece_id))}
    free = set(kept) - needed - characters - vocabulary.required()
    most = max((int(counts[piece_id]) for piece_id in dropped), default=0)
    assert all(counts[piece_id] >= most for piece_id in free)
    # One fewer would not have been enough.
    fewer = choose_pieces(tokenizer, counts, keep=len(kept) - 1)
    assert counts[fewer].sum() < coverage * counts.sum()


@pytest.mark.parametrize("kind", slow(toys.CLASSES, but=["bert"]))
def test_a_number_of_pieces(kind):
    tokenizer = toys.tokenizer(kind)
    counts = count_pieces(tokenizer, toys.docstrings(20))
    few, more = (choose_pieces(tokenizer, counts, keep=keep) for keep in (520, 640))
    assert 510 < len(few) <= 520
    assert 630 < len(more) <= 640
    assert set(few) < set(more)
    assert counts[few].sum() <= counts[more].sum()
    assert choose_pieces(tokenizer, counts, keep=10_000) == sorted(tokenizer.get_vocab().values())


def test_characters_of_the_corpus_stay_so_that_nothing_in_it_becomes_unknown():
    tokenizer = toys.tokenizer("bert")
    texts = toys.docstrings(40)
    kept = choose_pieces(tokenizer, count_pieces(tokenizer, texts), coverage=0.5)
    trimmed = trim_tokenizer(tokenizer, kept)
    result = compare_tokenizers(tokenizer, trimmed, kept, texts)
    assert result.unknown_after == result.unknown
    assert result.tokens_after > result.tokens
    # One word of the corpus alone leaves the others writable, because ASCII stays.
    kept = choose_pieces(tokenizer, count_pieces(tokenizer, ["class"]), coverage=1.0)
    assert "[UNK]" not in trim_tokenizer(tokenizer, kept).tokenize("return every other word in 1999")


def test_what_is_always_kept():
    tokenizer = toys.tokenizer("bert")
    counts = count_pieces(tokenizer, ["class"])
    always = pieces_of(tokenizer, ["deprecated function"])
    without, with_it = (choose_pieces(tokenizer, counts, coverage=1.0, always=each) for each in ((), always))
    assert not always <= set(without)
    assert always <= set(with_it)


def test_choices_that_cannot_be_made():
    tokenizer = toys.tokenizer("gpt2")
    counts = count_pieces(tokenizer, ["a text"])
    with pytest.raises(ConfigError, match=r"`keep` is 100, but (\d+) pieces always stay.*give \1 or more") as refused:
        choose_pieces(tokenizer, counts, keep=100)
    fewest = int(str(refused.value).split()[4])
    assert 257 <= fewest < 270  # a few are needed to spell the end token
    assert len(choose_pieces(tokenizer, counts, keep=fewest)) == fewest
    with pytest.raises(ConfigError, match=rf"give {fewest} or more"):
        choose_pieces(tokenizer, counts, keep=fewest - 1)
    with pytest.raises(ConfigError, match="`keep` is None and `coverage` is None; give one"):
        choose_pieces(tokenizer, counts)
    with pytest.raises(DataError, match="the corpus gives no token"):
        choose_pieces(tokenizer, counts * 0, keep=300)


def test_texts_are_compared_as_they_are_split():
    tokenizer = toys.random_words(0)
    first, second, third, *_ = (name for name in tokenizer.get_vocab() if name.isalpha() and len(name) > 1)
    kept = choose_pieces(tokenizer, count_pieces(tokenizer, [f"{first} {second}"]), coverage=1.0)
    trimmed = trim_tokenizer(tokenizer, kept)
    texts = [first, f"{first} {third}", f"{second} nothing", "", f"{third} {third}"]
    result = compare_tokenizers(tokenizer, trimmed, kept, iter(texts))
    assert result == TextCoverage(texts=5, same=3, tokens=7, kept=4, tokens_after=7, unknown=1, unknown_after=4)
    report = TrimReport.of(result, (100, 50), (4000, 3000))
    assert report.summary() == {
        "pieces_before": 100,
        "pieces_after": 50,
        "bytes_before": 4000,
        "bytes_after": 3000,
        "coverage": 4 / 7,
        "texts_same": 0.6,
        "longer": 1.0,
        "unknown": 4 / 7,
    }


def test_a_long_text_is_the_same_only_if_all_of_it_is():
    """Longer than what is split at once, with the piece that is missing at the beginning."""
    tokenizer = toys.random_words(0)
    first, second, *_ = (name for name in tokenizer.get_vocab() if name.isalpha() and len(name) > 1)
    kept = choose_pieces(tokenizer, count_pieces(tokenizer, [first]), coverage=1.0)
    trimmed = trim_tokenizer(tokenizer, kept)
    long = f"{first} " * 2**18
    result = compare_tokenizers(tokenizer, trimmed, kept, [f"{second} {long}", long, first])
    assert (result.texts, result.same) == (3, 2)


def test_settings():
    assert TrimConfig.make({"corpus": "a.txt"}).corpus == ("a.txt",)
    assert TrimConfig.make({}).share == 0.9995
    assert TrimConfig.make({"keep": 5000}).share is None
    assert TrimConfig.make({"coverage": 0.9}).share == 0.9
    # What was run can be read again.
    config = TrimConfig.make({"keep": 5000, "always": ["heart attack"]})
    assert TrimConfig.make(config.model_dump()) == config
    with pytest.raises(ConfigError, match=r"`keep` is 5 and `coverage` is 0.9, and both"):
        TrimConfig.make({"keep": 5, "coverage": 0.9})
    with pytest.raises(ConfigError, match=r"`coverage` is `1.5`"):
        TrimConfig.make({"coverage": 1.5})
    with pytest.raises(ConfigError, match="`keep` is `0`"):
        TrimConfig.make({"keep": 0})
