"""Which pieces are chosen: against a slow version that asks the real tokenizer at every step."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from slimformer.errors import CheckpointError, ConfigError, DataError
from slimformer.methods.extend import NewPiece, choose_new_pieces, count_words, extend_tokenizer
from tests.methods.trim import toys
from tests.parameters import slow

AWKWARD = {"bpe": toys.random_bpe, "unigram": toys.random_unigram, "wordpiece": toys.random_wordpiece}


def random_texts(seed: int) -> list[str]:
    """Words over four letters and one that is unknown, some of them often."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("αβγδε", (9, 9, 9, 9, 1), k=draw.randint(1, 9))) for _ in range(12)]
    return [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(6)]


def tokens_of(tokenizer, word: str) -> tuple[str, ...]:
    return tuple(tokenizer.convert_ids_to_tokens(tokenizer(word, add_special_tokens=False)["input_ids"]))


def known_stretches(tokens: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [tuple(stretch) for known, stretch in groupby(tokens, lambda token: token != "<unk>") if known]


def runs(tokens: tuple[str, ...], longest: int) -> list[tuple[str, ...]]:
    spans = combinations(range(len(tokens) + 1), 2)
    return [tokens[start:end] for start, end in spans if 2 <= end - start <= longest]


def slow_choice(tokenizer, texts: list[str], count: int, least: int) -> list[NewPiece]:
    """Every candidate of every word is counted anew for every piece, and words are split by the library itself."""
    kind = type(tokenizer.backend_tokenizer.model).__name__
    words = Counter(word for text in texts for word in text.split())
    if kind != "BPE":  # merges go on beside a letter that is unknown; elsewhere such words are left alone
        words = Counter({word: times for word, times in words.items() if "<unk>" not in tokens_of(tokenizer, word)})
    first = 1 + max(tokenizer.get_vocab().values())
    chosen: list[NewPiece] = []
    refused: set[tuple[tuple[str, tuple[str, ...]], int]] = set()
    while len(chosen) < count:
        now = extend_tokenizer(tokenizer, chosen)
        saves: Counter[tuple[str, tuple[str, ...]]] = Counter()
        occurs: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for word, times in words.items():
            for tokens in known_stretches(tokens_of(now, word)):
                held = set()
                for run in runs(tokens, 2 if kind == "BPE" else 8):
                    text = run[0] + "".join(token.removeprefix("##") for token in run[1:])
                    candidate = (text, run if kind == "BPE" else ())
                    saves[candidate] += times * (len(run) - 1)
                    held.add(candidate)
                occurs.update(dict.fromkeys(held, times))
        for candidate, saved in sorted(saves.items(), key=lambda item: (-item[1], item[0])):
            text, run = candidate
            known = text in now.get_vocab() or occurs[candidate] < least or (candidate, saved) in refused
            parts = old_parts(tokenizer, kind, chosen, candidate)
            if known or parts is None:
                continue
            piece = NewPiece(first + len(chosen), text, run or parts, ids_of(tokenizer, parts), 0)
            after = extend_tokenizer(tokenizer, [*chosen, piece])
            split = {word: tokens_of(after, word) for word in words}
            net = sum(times * (len(tokens_of(now, word)) - len(split[word])) for word, times in words.items())
            if net <= 0 or (kind != "BPE" and any("<unk>" in tokens for tokens in split.values())):
                refused.add((candidate, saved))
                continue
            chosen.append(NewPiece(piece.id, text, piece.run, piece.parts, net))
            break
        else:
            break
    return chosen


def old_parts(tokenizer, kind: str, chosen: list[NewPiece], candidate) -> tuple[str, ...] | None:
    text, run = candidate
    if kind == "BPE":
        names = {piece.text: piece.parts for piece in chosen}
        every = tokenizer.convert_ids_to_tokens
        return tuple(part for token in run for part in (every(list(names[token])) if token in names else [token]))
    if text.startswith("##"):  # no text is split so by itself
        return Greedy(tokenizer).split(text[2:])
    tokens = tokens_of(tokenizer, text)
    return None if "<unk>" in tokens else tokens


class Greedy:
    """Longest match of continuations."""

    def __init__(self, tokenizer) -> None:
        self.pieces = tokenizer.get_vocab()

    def split(self, text: str) -> tuple[str, ...] | None:
        if not text:
            return ()
        for end in range(len(text), 0, -1):
            if f"##{text[:end]}" in self.pieces:
                rest = self.split(text[end:])
                return None if rest is None else (f"##{text[:end]}", *rest)
        return None


def ids_of(tokenizer, names) -> tuple[int, ...]:
    return tuple(tokenizer.convert_tokens_to_ids(list(names)))


@pytest.mark.parametrize("seed", slow(range(12), but=[0]))
@pytest.mark.parametrize("kind", AWKWARD)
def test_the_choice_is_that_of_the_slow_version(kind, seed):
    tokenizer, texts = AWKWARD[kind](seed), random_texts(seed)
    for least in (1, 3):
        assert choose_new_pieces(tokenizer, texts, 6, least=least) == slow_choice(tokenizer, texts, 6, least)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False))
def test_the_order_of_texts_does_not_matter(seed, order):
    tokenizer, texts = toys.random_wordpiece(seed), random_texts(seed)
    chosen = choose_new_pieces(tokenizer, texts, 5)
    order.shuffle(texts)
    assert choose_new_pieces(tokenizer, iter(texts), 5) == chosen
    assert choose_new_pieces(tokenizer, texts, 3) == chosen[:3]


def wordpiece(*pieces: str):
    return toys.wrap(models.WordPiece(toys.numbered(["<unk>", *pieces]), unk_token="<unk>"))


def test_what_saves_most_comes_first_and_ties_go_by_text():
    tokenizer = wordpiece("a", "b", "##a", "##b", "##c")
    chosen = choose_new_pieces(tokenizer, ["abc abc bca bca aa"], 9)
    assert [(piece.text, piece.saves) for piece in chosen] == [("abc", 4), ("bca", 4)]
    assert [piece.run for piece in chosen] == [("a", "##b", "##c"), ("b", "##c", "##a")]
    first = 1 + max(tokenizer.get_vocab().values())
    assert [piece.id for piece in chosen] == [first, first + 1]
    assert chosen[0].parts == ids_of(tokenizer, ["a", "##b", "##c"])
    # Once is not often enough, unless that is asked for.
    assert [piece.text for piece in choose_new_pieces(tokenizer, ["abc abc bca bca aa"], 9, least=1)][2:] == ["aa"]


def test_a_piece_that_does_harm_elsewhere_is_passed_over():
    """`ab` would save a token of each `ab`, and cost one of each `abcd` and `abdc`, which begin with `a`."""
    tokenizer = wordpiece("a", "##b", "##c", "##d", "##bcd", "##bdc")
    few = choose_new_pieces(tokenizer, ["ab ab ab abcd abdc"], 1)
    assert [(piece.text, piece.saves) for piece in few] == [("ab", 1)]
    many = choose_new_pieces(tokenizer, ["ab ab ab abcd abcd abdc abdc"], 3)
    assert [(piece.text, piece.saves) for piece in many] == [("abcd", 2), ("abdc", 2)]


def test_a_piece_that_would_make_a_word_unknown_is_passed_over():
    """Without `##d` by itself, `abcd` could not be written once `abc` is a piece."""
    tokenizer = wordpiece("a", "##b", "##c", "##cd")
    assert tokenizer.tokenize("abcd") == ["a", "##b", "##cd"]
    chosen = choose_new_pieces(tokenizer, ["abc abc abc abc abcd"], 3)
    extended = extend_tokenizer(tokenizer, chosen)
    assert [piece.text for piece in chosen] == ["ab"]
    assert extended.tokenize("abc abcd") == ["ab", "##c", "ab", "##cd"]


def test_bpe_reaches_words_by_merges():
    letters = toys.numbered(["<unk>", *"abc"])
    tokenizer = toys.wrap(models.BPE(letters, [], unk_token="<unk>"))
    chosen = choose_new_pieces(tokenizer, ["abc abc abc ab c", "bc"], 5)
    assert [(piece.text, piece.run, piece.saves) for piece in chosen] == [
        ("ab", ("a", "b"), 4),
        ("abc", ("ab", "c"), 3),
    ]
    assert chosen[1].parts == ids_of(tokenizer, "abc")
    assert extend_tokenizer(tokenizer, chosen).tokenize("abcab bc") == ["abc", "ab", "b", "c"]


def test_words_are_those_of_the_tokenizer():
    tokenizer = toys.tokenizer("bert")
    words = count_words(tokenizer, ["return, Return", "", "the return [SEP]"])
    named = {tuple(tokenizer.convert_ids_to_tokens(list(word))): times for word, times in words.items()}
    assert named == {("return",): 3, (",",): 1, ("the",): 1, ("[SEP]",): 1}


def test_what_cannot_be_chosen():
    tokenizer = wordpiece("a", "##a")
    with pytest.raises(ConfigError, match="`count` is 0 and `least` is 2; give 1 or more"):
        choose_new_pieces(tokenizer, ["aa"], 0)
    with pytest.raises(DataError, match="the corpus gives no token"):
        choose_new_pieces(tokenizer, [""], 5)
    assert choose_new_pieces(tokenizer, ["a a a"], 5) == []
    with pytest.raises(CheckpointError, match=r"model is `WordLevel`.* can be extended: BPE, Unigram, WordPiece"):
        choose_new_pieces(toys.random_words(0), ["a"], 5)
