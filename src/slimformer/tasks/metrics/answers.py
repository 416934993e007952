"""Answers to questions, as SQuAD and MLQA compare them."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = frozenset(string.punctuation)


def normalise(answer: str) -> str:
    """Lower case, without punctuation, English articles and surplus blanks.

    SQuAD knows only ASCII punctuation. In an answer with Chinese characters every Unicode punctuation mark
    is dropped as well, as MLQA does, for 《》 and 。 are what quotes and stops are there.
    """
    unicode_marks = any(_ideograph(character) for character in answer)
    kept = (
        character
        for character in answer.lower()
        if character not in _ASCII_PUNCTUATION
        and not (unicode_marks and unicodedata.category(character).startswith("P"))
    )
    return " ".join(_ARTICLES.sub(" ", "".join(kept)).split())


def words(answer: str) -> list[str]:
    """Words of a normalised answer; Chinese, which has no blanks between words, gives its characters."""
    return [word for part in normalise(answer).split() for word in _mixed(part)]


def exact_match(predicted: str, truths: Sequence[str]) -> float:
    """1 when the prediction equals one of the answers; no answers mean that the empty one is right."""
    return max(float(normalise(predicted) == normalise(truth)) for truth in truths or [""])


def answer_f1(predicted: str, truths: Sequence[str]) -> float:
    """The best F1 of words shared with one of the answers."""
    return max(_f1(words(predicted), words(truth)) for truth in truths or [""])


def _f1(predicted: list[str], truth: list[str]) -> float:
    if not predicted or not truth:
        return float(predicted == truth)
    shared = sum((Counter(predicted) & Counter(truth)).values())
    return 2 * shared / (len(predicted) + len(truth))


def _mixed(part: str) -> Iterator[str]:
    word = ""
    for character in part:
        if _ideograph(character):
            if word:
                yield word
            yield character
            word = ""
        else:
            word += character
    if word:
        yield word


def _ideograph(character: str) -> bool:
    point = ord(character)
    return 0x4E00 <= point <= 0x9FFF or 0x3400 <= point <= 0x4DBF or 0x20000 <= point <= 0x2FA1F
