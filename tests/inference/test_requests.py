"""Requests line by line: every line is one, and one that cannot be read says why."""

from __future__ import annotations

import csv
import gzip
import io
import os
import sys
import threading
import time
import zlib

import pytest

from slimformer.errors import DataError
from slimformer.inference import requests
from slimformer.inference.requests import given_requests, open_requests


def read(path):
    with open_requests(path) as found:
        return list(found)


@pytest.fixture
def write(tmp_path):
    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def test_a_text_a_line(write):
    found = read(write("texts.txt", "one\r\n two \nthree"))
    assert [request.content for request in found] == ["one", " two ", "three"]
    assert [request.line for request in found] == [1, 2, 3]


def test_a_byte_order_mark_and_compression(tmp_path):
    path = tmp_path / "texts.txt.gz"
    path.write_bytes(gzip.compress("\ufeffnaïve\n".encode()))
    assert [request.content for request in read(path)] == ["naïve"]
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        read(path)


@pytest.mark.parametrize("name", ["r.jsonl", "r.ndjson", "r.json", "r.txt"])
def test_json_lines(name, write):
    found = read(write(name, '{"text": "a"}\n["b", "c"]\n"d"\n{"text": \n'))
    assert [request.content for request in found] == [{"text": "a"}, ["b", "c"], "d", None]
    assert found[3].error.startswith("not valid JSON: ")
    assert found[3].line == 4


def test_text_that_only_later_looks_like_json(write):
    assert [request.content for request in read(write("r.txt", 'plain\n{"text": "a"}\n'))] == ["plain", '{"text": "a"}']


def test_lines_that_cannot_be_read(write, monkeypatch):
    found = read(write("r.txt", b"one\n\xff\xfe\n\n   \nfive\n"))
    assert [request.error for request in found] == [
        None,
        "not UTF-8: byte `0xff` at position 1; convert the file",
        "the line is empty; every line is one request",
        "the line is empty; every line is one request",
        None,
    ]
    monkeypatch.setattr(requests, "MAX_LINE", 10)
    found = read(write("r.txt", "x" * 35 + "\nshort\n" + "y" * 11))
    assert [request.line for request in found] == [1, 2, 3]
    too_long = "the line is longer than 10 bytes; cut it"
    assert [request.error for request in found] == [too_long, None, too_long]


def test_tables(write):
    found = read(write("r.csv", 'text,label\n"a ""b"", c",x\n"two\nlines",y\nshort\n'))
    assert [request.content for request in found[:2]] == [
        {"text": 'a "b", c', "label": "x"},
        {"text": "two\nlines", "label": "y"},
    ]
    assert [request.line for request in found] == [2, 3, 5]
    assert found[2].error == "1 fields where 2 are expected (text, label); mend the row"
    found = read(write("r.tsv", 'question\tcontext\n"who\tthe "cat"\n'))
    assert found[0].content == {"question": '"who', "context": 'the "cat"'}
    assert read(write("one.csv", "anything\nhello\n"))[0].content == "hello"
    broken = read(write("r.tsv", b"text\nfine\n\xff\nfine\n"))
    assert [request.error is None for request in broken] == [True, False, True]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("r.txt", "", "is empty"),
        ("r.csv", "", "is empty; its first line names the columns"),
        ("r.json", '[\n{"text": "a"}\n]', "holds one JSON array; write one object a line"),
    ],
)
def test_files_that_are_no_requests(name, content, words, write):
    with pytest.raises(DataError, match=words):
        read(write(name, content))


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match=r"no file at .*; give a file of requests, or `-`"):
        read(tmp_path / "nowhere.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n')))
    (found,) = read("-")
    assert (found.content, found.file) == ({"text": "a"}, "standard input")


def test_an_error_of_the_reader_is_not_blamed_on_the_file(write):
    """Models are opened while requests wait; what is missing or broken there has another name."""
    path = write("r.txt", "one\n")
    for error in (FileNotFoundError("model.bin"), PermissionError("cache"), EOFError("weights"), zlib.error("png")):
        with pytest.raises(type(error), match=str(error)), open_requests(path):
            raise error


def test_a_packed_file_that_breaks_off_says_so_in_its_place(tmp_path):
    path = tmp_path / "texts.txt.gz"
    whole = gzip.compress("".join(f"text number {n} {hash(n * 7919)}\n" for n in range(20_000)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    found = read(path)
    assert len(found) > 100
    assert [request.error for request in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1].error.startswith("the file cannot be read from here on: ")
    assert found[-1].line == len(found)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    path.write_bytes(flipped)
    assert read(path)[-1].error.startswith("the file cannot be read from here on: ")


def test_rows_of_a_table_that_cannot_be_read(write, monkeypatch):
    monkeypatch.setattr(requests, "MAX_LINE", 30)
    found = read(write("r.csv", 'text\nfine\n"a long field\nof three lines\nthat goes on\nfine\n'))
    assert [request.error for request in found] == [
        None,
        "not a row of a table: a row of more than 30 characters; mend it",
        None,
    ]
    assert [request.content for request in found[::2]] == ["fine", "fine"]
    assert [request.line for request in found] == [2, 3, 6]
    monkeypatch.undo()
    found = read(write("r.csv", 'text,label\n"a"b,x\n"whole",y\n"cut off,'))
    assert found[0].error.startswith("not a row of a table: ")
    assert found[1].content == {"text": "whole", "label": "y"}
    assert found[2].error == "not a row of a table: a field in double quotes is not closed; mend it"
    assert [request.line for request in found] == [2, 3, 4]


def test_the_limit_on_fields_is_as_it_was(write):
    """It belongs to the process, and other libraries read tables too."""
    before = csv.field_size_limit()
    with open_requests(write("r.csv", "text\n" + "x" * (before + 10) + "\ntwo\n")) as found:
        first = next(found)
        assert len(first.content) == before + 10
        assert csv.field_size_limit() == before
        assert next(found).content == "two"
    assert csv.field_size_limit() == before


def test_on_the_command_line():
    found = [request.content for request in given_requests(["plain", '{"text": "a"}', "{broken"])]
    assert found == ["plain", {"text": "a"}, "{broken"]


def test_threads_read_long_fields_at_the_same_time():
    """The limit of the process is neither put back under another reader nor left as it was lifted."""
    before = csv.field_size_limit(10)

    def first_row(pipe, rows):
        with os.fdopen(pipe, "rb") as stream:
            rows.append(next(requests._requests("rows.csv", stream)))

    ends, rows, threads = [os.pipe() for _ in range(2)], ([], []), []
    try:
        for (out, into), place in zip(ends, rows, strict=True):
            os.write(into, b"text\n")
            threads.append(threading.Thread(target=first_row, args=(out, place), daemon=True))
            threads[-1].start()
            time.sleep(0.2)  # until it waits for its row
        for (_, into), thread in zip(ends, threads, strict=True):
            os.write(into, b"a field of more than ten letters\n")
            thread.join(5)
            os.close(into)
        assert [request.error for place in rows for request in place] == [None, None]
        assert csv.field_size_limit() == 10
    finally:
        csv.field_size_limit(before)
