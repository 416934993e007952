"""Texts are encoded as the tokenizer itself would, and whoever else uses the tokenizer makes no difference."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimformer.tasks import get_task
from slimformer.tasks.encoding import TextEncoder, longest_first
from slimformer.tasks.kinds import kind_of
from slimformer.tasks.splits import Split

WORDS = [
    *("the", "cat", "sat", "on", "a", "mat,", "which", "was", "rather", "unbelievably", "in", "1984!"),
    *("antidisestablishmentarian", "naïve", "日本"),
]


def texts(seed, count=5, most=30):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(0, most))) for _ in range(count)]


@pytest.fixture(params=["minilm", "letters", "pieces"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("max_length", [5, 12, 40, None])
def test_texts_and_pairs_as_the_tokenizer_makes_them(tokenizer, side, max_length, monkeypatch):
    monkeypatch.setattr(tokenizer, "truncation_side", side)
    # The backend keeps all it cuts off, of two texts in every combination: very long ones take their time.
    encoder, most = TextEncoder(tokenizer), 30 if max_length is None else min(30, 2 * max_length)
    for seed in range(20):
        first, second = texts(seed, most=most), texts(seed + 100, most=most)
        for pairs in (None, second):
            expected = tokenizer(first, pairs, truncation=max_length is not None, max_length=max_length)
            found = encoder.inputs(first, pairs, max_length)
            for index, item in enumerate(found):
                assert list(item) == list(expected)
                assert {name: array.tolist() for name, array in item.items()} == {
                    name: expected[name][index] for name in expected
                }


@pytest.mark.parametrize("max_length", [5, 40])
def test_words_as_the_tokenizer_makes_them(tokenizer, max_length):
    sentences = [text.split() or ["x"] for text in texts(1, 40)]
    expected = tokenizer(sentences, is_split_into_words=True, truncation=True, max_length=max_length)
    found = TextEncoder(tokenizer).encodings(sentences, None, max_length)
    for index, encoding in enumerate(found):
        assert encoding.ids == expected["input_ids"][index]
        assert encoding.word_ids == expected.word_ids(index)


@pytest.mark.parametrize("max_length", [40, 64])
def test_windows_as_the_tokenizer_makes_them(tokenizer, max_length):
    questions, contexts = ["who sat", "a mat"], [text or "x" for text in texts(2, 2, 200)]
    expected = tokenizer(
        questions,
        contexts,
        truncation="only_second",
        max_length=max_length,
        stride=max_length // 4,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows = TextEncoder(tokenizer).windows(questions, contexts, max_length, max_length // 4)
    assert [len(each) for each in windows] == [
        expected["overflow_to_sample_mapping"].count(index) for index in range(2)
    ]
    for index, encoding in enumerate(window for each in windows for window in each):
        assert encoding.ids == expected["input_ids"][index]
        assert encoding.offsets == expected["offset_mapping"][index]
        assert [part == 1 for part in encoding.sequence_ids] == [part == 1 for part in expected.sequence_ids(index)]


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 60))
def test_what_two_texts_keep(first, second, room):
    ours, theirs = longest_first(first, second, room)
    assert 0 <= ours <= first
    assert 0 <= theirs <= second
    assert ours + theirs == min(room, first + second)
    # The longer text is cut first: it is never left shorter than the other one, but for an odd token.
    if ours < first:
        assert ours >= theirs - 1
    if theirs < second:
        assert theirs >= ours - 1


def test_tokens_added_later_are_known(pieces):
    import copy

    tokenizer = copy.deepcopy(pieces)
    encoder = TextEncoder(tokenizer)
    before = encoder.ids(["xyz"], special_tokens=False)
    tokenizer.add_tokens(["xyz"])
    assert len(before[0]) == 3
    assert encoder.ids(["xyz"], special_tokens=False) == [[len(tokenizer) - 1]]


@pytest.mark.parametrize("change", ["normalizer", "split_special_tokens", "post_processor", "single_word"])
def test_a_tokenizer_that_was_changed_encodes_as_it_does_now(change, pieces):
    """None of these changes how many tokens there are."""
    import copy

    from tokenizers import AddedToken, normalizers, processors

    tokenizer = copy.deepcopy(pieces)
    tokenizer.add_tokens([AddedToken("fil")])
    text = "[CLS] FILM film"
    before = TextEncoder(tokenizer).ids([text])
    if change == "normalizer":
        tokenizer.backend_tokenizer.normalizer = normalizers.Replace("m", "xyz")
    elif change == "split_special_tokens":
        tokenizer.split_special_tokens = True
    elif change == "single_word":
        tokenizer.add_tokens([AddedToken("fil", single_word=True)])
    else:
        sep = (tokenizer.sep_token, tokenizer.sep_token_id)
        tokenizer.backend_tokenizer.post_processor = processors.BertProcessing(sep, sep)
    expected = tokenizer([text])["input_ids"]
    assert expected != before
    assert TextEncoder(tokenizer).ids([text]) == expected


def test_threads_with_different_lengths_do_not_cut_each_others_texts(minilm):
    """Half of the threads use the tokenizer itself, which keeps its last caller's settings."""
    kind = kind_of("classification")
    split = Split([{"text": "a film " * 200, "label": 0}] * 8, [("here", 1)] * 8)
    wrong: list[tuple[int, int]] = []
    start = threading.Barrier(6)

    def encode(length):
        start.wait()
        for _ in range(40):
            found = {len(item["input_ids"]) for item in kind.features(split, minilm, length, 0)}
            if found != {length}:
                wrong.append((length, *found))

    def disturb(length):
        start.wait()
        for _ in range(40):
            minilm(["a film " * 200] * 8, truncation=True, max_length=length, padding="max_length")

    with ThreadPoolExecutor(6) as pool:
        tasks = [pool.submit(encode, length) for length in (7, 31, 64, 128)]
        tasks += [pool.submit(disturb, length) for length in (9, 200)]
        for task in tasks:
            task.result()
    assert not wrong


def test_the_tokenizer_is_left_as_it_was(minilm, tmp_path):
    minilm.backend_tokenizer.enable_truncation(max_length=9)
    minilm.backend_tokenizer.enable_padding(length=11)
    (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "a film " * 20 + "\tgood\nx\tbad\n")
    features = get_task("classification").load(tmp_path, ["dev"]).prepare("dev", minilm, 30)
    assert [len(item["input_ids"]) for item in features] == [30, 3]
    assert minilm.backend_tokenizer.truncation["max_length"] == 9
    assert minilm.backend_tokenizer.padding["length"] == 11
    assert all(np.asarray(item["attention_mask"]).all() for item in features)
