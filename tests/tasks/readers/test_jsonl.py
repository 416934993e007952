from __future__ import annotations

import pytest

from slimformer.errors import DataError
from slimformer.tasks.readers.jsonl import read_jsonl


def test_objects_a_line_with_blank_lines_between(write):
    table = read_jsonl(write("a.jsonl", '{"text": "a\\u2028b", "label": 1}\n\n{"text": "c", "more": [1]}\n'))
    assert table.columns == ("text", "label", "more")
    assert [row.line for row in table.rows] == [1, 3]
    assert table.rows[0].values == {"text": "a\u2028b", "label": 1, "more": None}
    assert table.rows[1].values == {"text": "c", "label": None, "more": [1]}


def test_one_array_of_objects(write):
    table = read_jsonl(write("a.json", '[\n {"text": "a"},\n {"text": "b"}\n]\n'))
    assert [row.values["text"] for row in table.rows] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": }\n', "a.jsonl` line 2 is not valid JSON: Expecting value at character 10"),
        ('{"text": "a"}\n3\n', "line 2 holds `3`, not an object"),
        ("[1]", "line 1 holds `1`"),
        ('[\n{"a": 1},\n', "is not valid JSON"),
    ],
)
def test_broken_files_name_the_line(write, content, message):
    with pytest.raises(DataError, match=message):
        read_jsonl(write("a.jsonl", content))
