from __future__ import annotations

import json

import pytest

from slimformer.errors import DataError
from slimformer.tasks.readers.squad import read_squad


def squad(*questions, context="the cat sat"):
    return json.dumps({"data": [{"title": "Cats", "paragraphs": [{"context": context, "qas": list(questions)}]}]})


def test_both_versions(write):
    first = {"id": "1", "question": "who?", "answers": [{"text": "cat", "answer_start": 4}]}
    second = {"id": "2", "question": "why?", "answers": [], "is_impossible": True, "plausible_answers": []}
    rows = read_squad(write("a.json", squad(first, second))).rows
    assert [row.line for row in rows] == [1, 2]
    assert rows[0].values["answers"] == {"text": ["cat"], "answer_start": [4]}
    assert rows[1].values["answers"] == {"text": [], "answer_start": []}
    assert rows[0].values["title"] == "Cats"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "a.json` line 1 is not valid JSON"),
        ("[]", "a.json` has no list `data`"),
        ('{"data": [{"title": "x"}]}', "article 1 is not in SQuAD's layout: `paragraphs` is missing"),
        (squad({"id": "1", "answers": []}), "`question` is missing"),
        ('{"data": []}', "holds no rows"),
    ],
)
def test_other_layouts_are_refused(write, content, message):
    with pytest.raises(DataError, match=message):
        read_squad(write("a.json", content))
