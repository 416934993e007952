"""Text files cut into byte ranges: every byte once, documents whole, memory bounded."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slimformer.corpus import open_corpus
from slimformer.corpus.source import refuse

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=60)
ENDS = st.sampled_from(["\n", "\r\n"])
SEGMENTS = st.integers(4, 200)


def read(content: bytes, segment: int, documents="lines") -> list[list[str]]:
    """The documents of every segment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_bytes(content)
        corpus = open_corpus(path, documents=documents, segment=segment)
        return [list(corpus.read(number, refuse)) for number in range(len(corpus.sizes))]


def flat(segments: list[list[str]]) -> list[str]:
    return [document for segment in segments for document in segment]


def without_blanks(texts) -> str:
    return "".join("".join(text.split()) for text in texts)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LINE, ENDS), min_size=1, max_size=12), SEGMENTS, st.booleans())
@example([("é" * 40, "\n")], 4, False)
@example([("a", "\r\n"), ("b" * 30, "\r\n"), ("", "\n"), ("𝄞" * 9, "\n")], 5, True)
def test_every_line_comes_once(lines, segment, last_is_open):
    content = "".join(line + end for line, end in lines)
    content = content.rstrip("\r\n") if last_is_open else content
    written = [line.removesuffix("\r") for line in content.split("\n") if line.strip()]
    if not written or written[0].startswith(("{", "\ufeff")):
        return
    found = flat(read(content.encode(), segment))
    assert without_blanks(found) == without_blanks(written)
    whole = [line for line in written if len(f"{line}\r".encode()) < segment]
    assert not Counter(whole) - Counter(found)
    if len(whole) == len(written):
        assert found == written


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(LINE, max_size=3), min_size=1, max_size=6), SEGMENTS, ENDS, st.integers(1, 3))
@example([["a b", "c"], ["d"]], 4, "\r\n", 2)
def test_every_paragraph_comes_once(paragraphs, segment, end, blanks):
    content = (end * (blanks + 1)).join(end.join(lines) for lines in paragraphs) + end
    expected, lines, short = [], [], []
    for line in [*content.split("\n"), ""]:
        if line.strip(" \t\r"):
            lines.append(line)
        elif any(line.strip() for line in lines):
            expected.append(" ".join(line.strip() for line in lines if line.strip()))
            if len("\n".join(lines).encode()) + len(end) * (blanks + 2) < segment:
                short.append(expected[-1])
            lines = []
    if not expected or content.lstrip().startswith(("{", "\ufeff")):
        return
    found = flat(read(content.encode(), segment, "paragraphs"))
    assert without_blanks(found) == without_blanks(expected)
    assert not Counter(short) - Counter(found)
    if len(content.encode()) < segment:
        assert found == expected


def test_a_document_belongs_to_the_segment_its_first_byte_lies_in():
    # Bytes 0-5, 6-11, 12-17, 18-23 with borders at 8 and 16.
    assert read(b"aaaaa\nbbbbb\nccccc\nddddd\n", 8) == [["aaaaa", "bbbbb"], ["ccccc"], ["ddddd"]]
    assert read(b"aaaaaaa\nbbbbb\n", 8) == [["aaaaaaa"], ["bbbbb"]]


def test_a_line_longer_than_a_segment_is_cut_between_characters():
    found = read("éé€€𝄞𝄞".encode() * 5 + b"\nend\n", 10)
    assert "".join(flat(found)) == "éé€€𝄞𝄞" * 5 + "end"
    assert max(len(segment[0].encode()) for segment in found if segment) <= 20
    assert flat(found)[-1] == "end"


def test_lines_end_at_line_feeds_only_and_blank_ones_are_no_documents():
    content = "one\x0cstill one\u2028and on\r\n \t\r\n\n two \n"
    assert flat(read(content.encode(), 1000)) == ["one\x0cstill one\u2028and on", " two "]


def test_a_byte_order_mark_is_no_text():
    assert flat(read(b"\xef\xbb\xbfone\ntwo\n", 4)) == ["one", "two"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_paragraphs_are_joined_with_blanks(end):
    content = end.join(["", "a film ", " of note", "", " \t", "second", "third", "", "fourth"])
    assert flat(read(content.encode(), 1000, "paragraphs")) == ["a film of note", "second third", "fourth"]


def test_what_is_appended_later_is_not_read(write):
    path = write("a.txt", "one\ntwo\n")
    corpus = open_corpus(path)
    with path.open("a") as file:
        file.write("three\n")
    assert list(corpus.documents()) == ["one", "two"]
