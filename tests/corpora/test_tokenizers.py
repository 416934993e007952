"""Every kind of tokenizer: its own special tokens around, its separator between, its tokens within."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from slimformer.corpus import open_corpus
from slimformer.corpus.source import Outlive
from slimformer.errors import DataError
from slimformer.models import resolve
from tests.corpora import making
from tests.corpora.making import ids

SEPARATORS = {
    "bert": "[SEP]",
    "mpnet": "</s>",
    "roberta": "</s>",
    "xlm-roberta": "</s>",
    "llama": "</s>",
    "gpt2": "<|endoftext|>",
}


@pytest.mark.parametrize("kind", making.KINDS)
def test_an_example_is_what_the_tokenizer_would_make(write, kind):
    tokenizer = making.KINDS[kind]()
    stream = open_corpus(write("a.txt", "some text\nand more\n")).stream(tokenizer, 64)
    (packed,) = ids(stream, stream.epoch_size())
    closes = kind not in ("llama", "gpt2")
    separator = tokenizer.convert_tokens_to_ids(SEPARATORS[kind])
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("some text", "and more"))
    around = tokenizer("some text")["input_ids"]
    opening = around[: around.index(first[0])]
    assert len(opening) == (kind != "gpt2")
    assert packed == [*opening, *first, separator, *second, *([around[-1]] if closes else [separator])]

    single = open_corpus(write("b.txt", "some text\n")).stream(tokenizer, 64, pack=False)
    assert ids(single, 1) == [around]


@pytest.mark.parametrize("kind", making.KINDS)
def test_what_others_do_with_the_tokenizer_does_not_matter(write, kind):
    tokenizer = making.KINDS[kind]()
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    corpus = open_corpus(write("a.txt", "some text of several words\nand more\n" * 20))
    before = ids(corpus.stream(tokenizer, 16), 30)
    stream = corpus.stream(tokenizer, 16)
    tokenizer(["some text", "x"], truncation=True, max_length=3, padding="max_length")
    assert ids(stream, 30) == before
    assert ids(corpus.stream(tokenizer, 16), 30) == before


def bare(**names) -> PreTrainedTokenizerFast:
    built = Tokenizer(models.WordLevel(making.numbered("[UNK]", "[END]", "a", "b"), "[UNK]"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=built, **names)


def test_a_tokenizer_without_separator_is_refused(write):
    corpus = open_corpus(write("a.txt", "a b\nb\n"))
    with pytest.raises(DataError, match="neither a separator nor an end token"):
        corpus.stream(bare(), 8)
    assert sorted(ids(corpus.stream(bare(), 8, pack=False), 2)) == [[2, 3], [3]]
    assert ids(corpus.stream(bare(eos_token="[END]"), 8), 1) == [[2, 3, 1, 3, 1]]


def test_lengths_that_cannot_be(write):
    corpus = open_corpus(write("a.txt", "text\n"))
    with pytest.raises(DataError, match=r"length `2` leaves no room for text beside 2 special tokens"):
        corpus.stream(making.bert(), 2)
    tokenizer = making.bert()
    tokenizer.model_max_length = 16
    with pytest.raises(DataError, match=r"length `17` is more than the 16 tokens the tokenizer allows"):
        corpus.stream(tokenizer, 17)
    with pytest.raises(DataError, match=r"seed `-1` is negative"):
        corpus.stream(tokenizer, 16, seed=-1)
    with pytest.raises(DataError, match=r"buffer `0` holds no text"):
        corpus.stream(tokenizer, 16, buffer=0)


def test_a_slow_tokenizer_is_refused(write):
    class Slow:
        is_fast = False
        model_max_length = 99
        pad_token_id = eos_token_id = 0
        padding_side = "right"

    with pytest.raises(DataError, match="`Slow` is not a fast tokenizer"):
        open_corpus(write("a.txt", "text\n")).stream(Slow(), 16)


def test_text_without_tokens_is_an_error_and_no_endless_search(write):
    built = making.bert()
    stream = open_corpus(write("a.txt", "\x00\x01\n\x02\n")).stream(built, 16)
    with pytest.raises(DataError, match="the whole corpus gives no token"):
        stream[0]


def test_a_real_encoder_on_real_reviews(shared_data):
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    corpus = open_corpus(shared_data / "imdb" / "imdb_12k.csv", segment=2**16)
    corpus.sizes = corpus.sizes[:6]  # some 400 kB of it
    stream = corpus.stream(tokenizer, 128, buffer=2**17)
    found = [token for tokens in ids(stream, stream.epoch_size()) for token in tokens[1:-1] if token != 102]
    documents = [document for segment in range(6) for document in corpus.read(segment, Outlive())]
    assert len(documents) > 200
    expected = tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]
    assert sorted(found) == sorted(token for tokens in expected for token in tokens)


@pytest.mark.slow
def test_a_real_decoder_on_real_text(shared_data, stories):
    tokenizer = AutoTokenizer.from_pretrained(stories)
    corpus = open_corpus(shared_data / "wikitext-2" / "valid.txt")
    stream = corpus.stream(tokenizer, 256)
    examples = ids(stream, stream.epoch_size())
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert all(tokens[0] == begin and tokens[1] != end for tokens in examples)
    expected = tokenizer(list(corpus.documents()), add_special_tokens=False, verbose=False)["input_ids"]
    found = sorted(token for tokens in examples for token in tokens[1:] if token != end)
    assert found == sorted(token for tokens in expected for token in tokens)
    ends = sum(tokens.count(end) for tokens in examples)
    assert 0.98 * len(expected) < ends <= len(expected)
