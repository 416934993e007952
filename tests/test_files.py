"""Paths, files and JSON that come from anywhere."""

from __future__ import annotations

import os
import socket

import pytest

from slimformer.errors import PathError
from slimformer.files import JsonError, as_path, open_file, parse_json, read_limited, why_one_column


@pytest.mark.parametrize("name", ["~nouser/a", "x" * 5_000, "a/" * 3_000, "a\0b", "\ud800"])
def test_what_cannot_be_a_path(name):
    with pytest.raises(PathError, match="path"):
        as_path(name)


def test_a_loop_of_links_is_no_path(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(PathError, match="too many levels of symbolic links"):
        as_path(tmp_path / "a" / "file")


def test_a_path_need_not_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert as_path("~/new") == tmp_path / "new"
    assert as_path(tmp_path / "file" / "below") == tmp_path / "file" / "below"


def test_only_files_are_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    with open_file(tmp_path / "file") as file:
        assert file.read() == b"content"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path, kind in ((tmp_path, "folder"), (tmp_path / "link", "pipe"), ("/dev/zero", "device")):
        with pytest.raises(OSError, match=f"it is a {kind}, not a file"):
            open_file(path)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "nothing")


def test_a_socket_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket may be a hundred characters long
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        with pytest.raises(OSError):  # noqa: PT011 (which one depends on the system)
            open_file(tmp_path / "s")


def test_a_file_is_read_up_to_a_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_limited(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_limited(tmp_path / "file", 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("9" * 5_000, "thousands of digits"),
        ('{"a": "\\ud800"}', "half of a character"),
        ('{"\\uDfFf": 1}', "half of a character"),
        ('["\udc80"]', "half of a character"),
        (b'"\xff"', "byte 2 is not UTF-8"),
        ('{"a": ', "at character 7"),
        ("", "at character 1"),
    ],
)
def test_json_that_cannot_be_read(text, reason):
    with pytest.raises(JsonError, match=reason):
        parse_json(text)


def test_json_that_can():
    assert parse_json('{"a": ["\\ud83d\\ude00", 1]}') == {"a": ["\U0001f600", 1]}
    assert parse_json('"\\ud800"', halves=True) == "\ud800"
    assert parse_json(b'"\\\\ud800 is spelled out"') == "\\ud800 is spelled out"
    with pytest.raises(JsonError) as caught:
        parse_json('{\n"a": 1,\n}')
    assert caught.value.line == 3


def test_a_table_without_a_name_in_its_header_parts_its_fields_by_nothing():
    assert why_one_column([], ["a;b"], ",") is None
    assert "semicolons" in str(why_one_column(["a;b"], ["1;2"], ","))
