from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.tasks.metrics import tagging_metrics

TYPES = ("PER", "LOC")


def entities(tags):
    """Spans of a sentence in IOB2, read the slow way."""
    spans, begin = [], None
    for position, tag in enumerate([*tags, "O"]):
        if begin is not None and tag != f"I-{begin[1]}":
            spans.append((begin[0], position, begin[1]))
            begin = None
        if tag.startswith("B-"):
            begin = (position, tag[2:])
    return set(spans)


@st.composite
def sentences(draw):
    """Two taggings of the same words, both proper IOB2."""

    def tags(length):
        result = []
        for _ in range(length):
            inside = [f"I-{result[-1][2:]}"] if result and result[-1] != "O" else []
            result.append(draw(st.sampled_from(["O", *(f"B-{kind}" for kind in TYPES), *inside])))
        return result

    length = draw(st.integers(1, 8))
    return tags(length), tags(length)


@settings(max_examples=60, deadline=None)
@given(st.lists(sentences(), min_size=1, max_size=4))
def test_entity_f1_against_sets_of_spans(pairs):
    truth, guesses = ([list(side) for side in sides] for sides in zip(*pairs, strict=True))
    found = [entities(tags) for tags in guesses]
    gold = [entities(tags) for tags in truth]
    right = sum(len(one & other) for one, other in zip(gold, found, strict=True))
    total = sum(map(len, gold)) + sum(map(len, found))
    assert tagging_metrics(truth, guesses, ["f1"])["f1"] == pytest.approx(2 * right / total if total else 0.0)


def test_a_word_without_a_tag_is_wrong_and_outside():
    truth = [["B-PER", "I-PER", "O", "O"]]
    measured = tagging_metrics(truth, [["B-PER", None, "O", None]], ("f1", "precision", "recall", "accuracy"))
    assert measured == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 0.5}


def test_tags_without_a_scheme_are_not_written_to_the_terminal():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert tagging_metrics([["NOUN", "\x1b[2JVERB"]], [["NOUN", "NOUN"]], ("f1", "accuracy"))["accuracy"] == 0.5
    assert not seen
