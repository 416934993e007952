from __future__ import annotations

import gzip

import pytest

from slimformer.errors import DataError
from slimformer.tasks.readers.table import read_bytes, read_lines, read_text


def test_lines_end_at_line_feeds_only(write):
    path = write("a.txt", "one\x0cstill one\u2028and on\r\ntwo\n\nfour")
    assert list(read_lines(path)) == ["one\x0cstill one\u2028and on", "two", "", "four"]


def test_a_byte_order_mark_is_no_text(write):
    assert read_text(write("a.txt", b"\xef\xbb\xbfQuality\n")) == "Quality\n"


def test_bytes_that_are_not_utf8_are_named_with_line_and_position(write):
    path = write("train.tsv", b"text\tlabel\ngood\t1\ncaf\xe9\t0\n")
    with pytest.raises(DataError, match=r"train.tsv` line 3 is not UTF-8: byte `0xe9` at position 4"):
        read_text(path)
    assert read_text(path, "latin-1").splitlines()[2] == "café\t0"


def test_gzip_is_unpacked_and_a_cut_one_refused(write):
    packed = gzip.compress(b"hello\n" * 100)
    assert list(read_lines(write("a.txt.gz", packed))) == ["hello"] * 100
    with pytest.raises(DataError, match=r"b.txt.gz` is not a whole gzip file"):
        read_bytes(write("b.txt.gz", packed[:-9]))
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_bytes(write("c.txt.gz", b"plain"))


@pytest.mark.parametrize(("content", "message"), [(b"", "is empty"), (b" \n\n", "only blank space")])
def test_nothing_to_read_is_an_error(write, content, message):
    with pytest.raises(DataError, match=rf"dev.csv` {message}|dev.csv` holds {message}"):
        read_text(write("dev.csv", content))


def test_what_is_not_there_or_a_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_bytes(tmp_path / "none.csv")
    with pytest.raises(DataError, match="cannot be read: it is a folder"):
        read_bytes(tmp_path)
