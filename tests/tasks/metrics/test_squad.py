from __future__ import annotations

import pytest

from slimformer.tasks.metrics import answer_f1, exact_match, normalise, words


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("The  Cat!", "cat"),
        ("an apple, a day", "apple day"),
        ("U.S.", "us"),
        ("theatre", "theatre"),
        ("«quoted»", "«quoted»"),
        ("《红楼梦》。", "红楼梦"),
    ],
)
def test_normalisation(answer, plain):
    assert normalise(answer) == plain


def test_chinese_is_compared_by_characters():
    assert words("黑豹队 308 分x1") == ["黑", "豹", "队", "308", "分", "x1"]
    assert answer_f1("黑豹", ["黑豹队"]) == pytest.approx(2 * 2 / 5)


def test_scores_by_hand():
    assert exact_match("the Cat", ["dog", "cat."]) == 1.0
    assert answer_f1("black cat", ["the black dog", "cat"]) == pytest.approx(2 / 3)
    assert answer_f1("a a b", ["b b"]) == pytest.approx(2 * 1 / 3)  # articles go, then one word of one and two
    assert answer_f1("x", ["y"]) == 0.0


def test_no_answer_is_right_only_where_there_is_none():
    assert (exact_match("", []), answer_f1("", [])) == (1.0, 1.0)
    assert (exact_match("x", []), answer_f1("x", [])) == (0.0, 0.0)
    assert (exact_match("", ["x"]), answer_f1("", ["x"])) == (0.0, 0.0)
