"""What is wrong is said before a run starts; what turns up later is outlived."""

from __future__ import annotations

import gzip
import logging
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from slimformer.corpus import open_corpus
from slimformer.errors import DataError
from tests.corpora import making
from tests.corpora.making import ids


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\nfine\ncaf\xe9 noir\n", r"a.txt` line 3 is not UTF-8: byte `0xe9` at byte 13 of the file"),
        (
            "a.txt",
            "utf sixteen".encode("utf-16"),
            r"a.txt` is text in utf-16, not in UTF-8; convert the file, for example with: iconv -f utf-16",
        ),
        ("a.txt", b" \n\r\n\t\n", r"a.txt` holds no text; give files with at least one document"),
        ("a.txt", b"", r"a.txt` holds no text"),
        ("a.txt", b"\xef\xbb\xbf", r"a.txt` holds no text"),
        (
            "a.jsonl",
            b'{"text": "x"}\n{"text": \n',
            r"a.jsonl` line 2 is not valid JSON: Expecting value at character 10",
        ),
        ("a.jsonl", b'\n{"text"\n', r"a.jsonl` line 2 is not valid JSON: .*; write one object a line"),
        ("a.jsonl", b'{"text": "x"}\n["x"]\n', r"a.jsonl` line 2 holds a list, not an object; write one object a line"),
        ("a.jsonl", b'"x"\n', r"a.jsonl` line 1 holds a str, not an object"),
        ("a.json", b'[\n{"text": "x"}\n]\n', r"a.json` holds one JSON array, which cannot be read in parts"),
        ("a.jsonl", b'{"text": "x"}\n{"body": "x"}\n', r"line 2 has no column `text`: it has the column `body`; mend"),
        ("a.jsonl", b'{"text": "x"}\n{"text": 7}\n', r"line 2 holds `7` in column `text` and no text; mend the line"),
        (
            "a.jsonl",
            b'{"a": "x", "b": "y"}\n',
            r"does not tell which column holds the text: it has the columns `a`, `b`",
        ),
        ("a.jsonl", b'{"text": "x"}\n{"text": "caf\xe9"}\n', r"a.jsonl` line 2 is not UTF-8: byte `0xe9` at byte 27"),
        ("a.jsonl", b'{"text": ' + b"[" * 99999 + b"\n", r"a.jsonl` line 1 is not valid JSON: it is nested too deeply"),
        ("a.jsonl", b'{"n": ' + b"1" * 9999 + b"}", r"a.jsonl` line 1 is not valid JSON: a number in it has thousands"),
        ("a.tsv", b"id\ttext\n1\tx\n2\n", r"a.tsv` line 3 has 1 fields where 2 are expected: it begins `2`; mend"),
        ("a.tsv", b"text\ttext\nx\ty\n", r"a.tsv` line 1 names column `text` twice"),
        ("a.tsv", b"a\tb\nx\ty\n", r"a.tsv` does not tell which column holds the text"),
        ("a.tsv", b"text\n", r"a.tsv` holds no text"),
        ("a.csv", b'text\n"open\n', r"a.csv` line 2 is not valid CSV: a field in double quotes is not closed"),
        ("a.csv", b'text,n\n"x"y,1\n', r"a.csv` line 2 is not valid CSV"),
        ("a.csv", b"text,n\nx,1\ny\n", r"a.csv` byte 11: the record has 1 fields where 2 are expected"),
        ("a.csv", b"text,n\n" + b"\xff,1\n", r"a.csv` line 2 is not UTF-8: byte `0xff` at byte 7"),
        ("a.csv", b"text,n\n", r"a.csv` holds no text"),
        ("a.csv", b"text,text\nx,y\n", r"a.csv` line 1 names column `text` twice"),
        ("a.parquet", b"no table", r"a.parquet` is not a Parquet file that can be read: .*; copy it again"),
        ("a.txt.zst", b"no frame", r"a.txt.zst` is not a whole .zst file that can be read: ZSTD .*; copy it again"),
        ("a.txt.xz", b"no stream", r"a.txt.xz` is not a whole .xz file that can be read: .*; copy it again"),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), r"a.parquet.gz` is Parquet, which is compressed already"),
        ("a.pdf", b"%PDF", r"a.pdf` ends in `.pdf`, which no reader knows; give a file that ends in one of: .txt, "),
        (
            "a.jsonl.gz",
            b"\x1f\x8b",
            r"a.jsonl.gz` is not a whole .gz file that can be read: .*; copy it again",
        ),
    ],
)
def test_what_is_wrong_is_named(write, name, content, message):
    with pytest.raises(DataError, match=message) as error:
        open_corpus(write(name, content))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", ["./nope", "no such place", "train.csv", "a/b/c"])
def test_what_is_neither_path_nor_name(source):
    with pytest.raises(DataError, match=rf"nothing at `{source}`; give a file, a folder or a Hub name"):
        open_corpus([source])


def test_what_the_hub_does_not_have():
    with pytest.raises(DataError, match=r"^`nobody/nothing` is no file or folder here and could not be loaded"):
        open_corpus("nobody/nothing")


def test_settings_that_cannot_be(write):
    path = write("a.txt", "text\n")
    with pytest.raises(DataError, match=r"documents is `words`; give one of: lines, paragraphs"):
        open_corpus(path, documents="words")
    with pytest.raises(DataError, match=r"text_column is `body`, but `.*a.txt` holds plain text without columns"):
        open_corpus(path, text_column="body")
    with pytest.raises(DataError, match=r"a.csv` has no column `body`; it has the columns `text`, `n`; choose with"):
        open_corpus(write("a.csv", "text,n\nx,1\n"), text_column="body")
    with pytest.raises(DataError, match="no path was given"):
        open_corpus([])
    with pytest.raises(DataError, match="segment is `3` bytes"):
        open_corpus(path, segment=3)


def test_folders_with_nothing_to_read(write, tmp_path):
    write("a/notes.pdf", "x")
    write("a/Makefile", "x")
    with pytest.raises(DataError, match=r"a` holds no file that can be read; found: `.pdf`, `Makefile`; give files"):
        open_corpus(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"b` holds no file that can be read; found: nothing"):
        open_corpus(tmp_path / "b")
    write("c/a.txt", "")
    with pytest.raises(DataError, match=r"c` holds no text"):
        open_corpus(tmp_path / "c")
    write("d/a.txt", "text")
    write("d/b.txt.zip", "packed")
    with pytest.raises(DataError, match=r"b.txt.zip` is an archive, .* unzip b.txt.zip"):
        open_corpus(tmp_path / "d")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(write):
    path = write("a.txt", "text")
    path.chmod(0)
    with pytest.raises(DataError, match=r"a.txt` cannot be read: Permission denied"):
        open_corpus(path)


def test_a_file_that_goes_away(write):
    path = write("a.txt", "text\n")
    corpus = open_corpus(path)
    path.unlink()
    with pytest.raises(DataError, match=r"a.txt` cannot be read: No such file or directory; check the path"):
        list(corpus.documents())


def test_columns_that_are_no_text(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"column `text` of `.*a.parquet` holds `int64` and no text"):
        open_corpus(tmp_path / "a.parquet")
    Dataset.from_dict({"text": [["a"], ["b"]]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match=r"column `text` of `.*saved` holds `list<.*>` and no text"):
        open_corpus(tmp_path / "saved")


def test_data_sets_on_disk_that_do_not_do(tmp_path):
    dataset = Dataset.from_dict({"text": ["a"]})
    DatasetDict(dev=dataset, test=dataset).save_to_disk(tmp_path / "splits")
    with pytest.raises(DataError, match=r"splits` has no split `train`, but: dev, test"):
        open_corpus(tmp_path / "splits")
    dataset.save_to_disk(tmp_path / "harmed")
    next((tmp_path / "harmed").glob("*.arrow")).write_bytes(b"no table")
    with pytest.raises(DataError, match=r"harmed` is not a data set that can be read: .*; save it again"):
        open_corpus(tmp_path / "harmed")


def test_a_parquet_file_that_is_cut_short_later(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text {number}" for number in range(5000)]}), path, row_group_size=1000)
    corpus = open_corpus(path)
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"\0" * 300 + content[500:])
    with pytest.raises(DataError, match="is not a Parquet file that can be read"):
        list(corpus.documents())


LATER = {
    "a.txt": (b"good line\n" * 20, b"caf\xe9\n", "caf�"),
    "a.jsonl": (b'{"text": "good"}\n' * 20, b'{"text": \n', None),
    "b.jsonl": (b'{"text": "good"}\n' * 20, b'{"text": "caf\xe9"}\n', "caf�"),
    "a.tsv": (b"text\tn\n" + b"good\t1\n" * 20, b"ragged\n", None),
    "a.csv": (b"text,n\n" + b"good,1\n" * 20, b"caf\xe9,1\n", "caf�"),
}


@pytest.mark.parametrize("name", LATER)
def test_a_bad_record_later_does_not_end_a_run(write, name, caplog):
    good, bad, replaced = LATER[name]
    record = good.splitlines(keepends=True)[-1]
    path = write(name, good + bad + record + bad)
    corpus = open_corpus(path, segment=64)
    with caplog.at_level(logging.WARNING, "slimformer.corpus"):
        documents = list(corpus.documents())
    assert len(documents) == 21 + 2 * (replaced is not None)
    assert documents.count(replaced) == 2 * (replaced is not None)
    assert len(caplog.records) == 1
    assert f"{name}` byte " in caplog.text
    assert "left out" in caplog.text
    with pytest.raises(DataError, match=rf"{name}` line 2[12] "):
        corpus.check()
    stream = corpus.stream(making.bert(), 16, pack=False)
    assert stream.epoch_size() == len(documents)
    assert ids(stream, 30) == ids(corpus.stream(making.bert(), 16, pack=False), 30)


def test_bad_bytes_in_a_table_are_replaced(tmp_path, caplog):
    texts = [b"good"] * 55 + [b"caf\xe9"]
    array = pa.Array.from_buffers(
        pa.string(), len(texts), pa.array(texts, pa.binary()).buffers()
    )  # as careless writers leave them
    pq.write_table(pa.table({"text": array}), tmp_path / "a.parquet", row_group_size=20, use_dictionary=False)
    corpus = open_corpus(tmp_path / "a.parquet", segment=4)
    assert len(corpus.sizes) > 9
    assert list(corpus.documents())[-1] == "caf�"
    assert "a.parquet` row 56 is not UTF-8: byte `0xe9`" in caplog.text
    with pytest.raises(DataError, match=r"a.parquet` row 56 is not UTF-8"):
        corpus.check()


def test_a_sound_corpus_passes_the_check(write):
    open_corpus(write("a.txt", "good line\n" * 100), segment=64).check()
