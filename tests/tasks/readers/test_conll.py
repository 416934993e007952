from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import DataError
from slimformer.tasks.readers.conll import read_conll, read_conllu

WORD = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=6)
SENTENCES = st.lists(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=5), min_size=1, max_size=5)


def fields(form, **values):
    columns = dict.fromkeys(("lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"), "_")
    return "\t".join([values.pop("id", "1"), form, *{**columns, **values}.values()])


@settings(max_examples=60, deadline=None)
@given(SENTENCES)
def test_what_is_written_is_read_back(sentences):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        text = "\n\n".join("\n".join(f"{word}\tX\t{tag}" for word, tag in sentence) for sentence in sentences)
        path.write_text(text, encoding="utf-8", newline="")
        table = read_conll(path)
    assert [list(zip(row.values["tokens"], row.values["tags"], strict=True)) for row in table.rows] == sentences


def test_columns_by_blanks_and_document_marks(write):
    path = write("eng.train", "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n\nPeter NNP I-NP I-PER\n")
    rows = read_conll(path).rows
    assert [row.values["tokens"] for row in rows] == [["EU", "rejects"], ["Peter"]]
    assert rows[0].values["tags"] == ["I-ORG", "O"]
    assert [row.line for row in rows] == [3, 7]
    assert read_conll(path, tag=1).rows[0].values["tags"] == ["NNP", "VBZ"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tO\nb\tX\tO\n", "a.txt` line 2 has 3 columns where 2 are expected"),
        ("a\nb\n", "line 1 has 1 columns where 2 are expected"),
        ("a\tO\nb\t\n", "line 2: word `b` has an empty tag"),
        ("-DOCSTART- O\n", "holds no rows"),
    ],
)
def test_broken_columns_name_the_line(write, content, message):
    with pytest.raises(DataError, match=message):
        read_conll(write("a.txt", content))


def test_conllu_skips_ranges_and_empty_nodes(write):
    lines = [
        "# text = don't go",
        fields("don't", id="1-2"),
        fields("do", id="1", upos="AUX"),
        fields("n't", id="2", upos="PART"),
        fields("ghost", id="2.1", upos="VERB"),
        fields("go", id="3", upos="VERB", deprel="root"),
        "",
        fields("#", id="1", upos="SYM"),
    ]
    path = write("a.conllu", "\n".join(lines) + "\n\n")
    table = read_conllu(path)
    assert [row.values for row in table.rows] == [
        {"tokens": ["do", "n't", "go"], "tags": ["AUX", "PART", "VERB"]},
        {"tokens": ["#"], "tags": ["SYM"]},
    ]
    assert read_conllu(path, column="deprel").rows[0].values["tags"] == ["_", "_", "root"]


def test_conllu_wants_ten_columns(write):
    with pytest.raises(DataError, match=r"a.conllu` line 2 has 2 columns where CoNLL-U has 10"):
        read_conllu(write("a.conllu", "# x\n1\tdo\n"))
