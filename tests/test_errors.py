"""Values in messages: nothing steers a terminal, nothing fills it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimformer.errors import MESSAGE, VALUE, DataError, SlimformerError, describe, shorten, visible


@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "L"])))
def test_no_control_character_is_left(text):
    for character in visible(text):
        assert character in "\t\n" or not 0 <= ord(character) < 0x20
        assert not 0x7F <= ord(character) < 0xA0
        assert character not in "\u202e\u2066\u200f\u2028"
        character.encode()  # no half of a character either


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_stays_as_it_is(text):
    assert visible(text) == text


def test_a_message_is_made_fit_wherever_it_is_raised():
    error = DataError(f"label `{'x' * 5_000}` in `\x1b[2Jfile` is not known; mend it")
    assert str(error).startswith("label `xxx")
    assert str(error).endswith("xx` in `\\x1b[2Jfile` is not known; mend it")
    assert len(str(error)) < 2 * VALUE
    assert len(str(SlimformerError("word " * 10_000))) <= MESSAGE


def test_both_ends_of_a_path_are_kept():
    assert shorten("/home/" + "x" * 5_000 + "/train.tsv").startswith("/home/")
    assert shorten("/home/" + "x" * 5_000 + "/train.tsv").endswith("/train.tsv")
    assert len(shorten("y" * 5_000)) == VALUE


@pytest.mark.parametrize(
    "value",
    [
        pytest.param([["x" * 10**6] * 10**5] * 10**5, id="a list that would take a petabyte"),
        pytest.param(int("9" * 4_300) * 10, id="a number Python does not write"),
        pytest.param({"a": {"b": {"c": {"d": list(range(10**6))}}}}, id="a deep mapping"),
        pytest.param("z" * 10**7, id="a text"),
        pytest.param(b"z" * 10**7, id="bytes"),
    ],
)
def test_a_value_is_described_in_a_few_words(value):
    assert 0 < len(describe(value)) <= VALUE


def test_a_value_of_many_lines_is_told_in_one():
    class Long:
        def __repr__(self) -> str:
            return "Model(\n  (layer): Linear()\n)"

    assert describe(Long()) == "Model( (layer): Linear() )"
