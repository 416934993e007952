from __future__ import annotations

import pytest

from slimformer.errors import DataError
from slimformer.tasks.readers.text import read_class_folders, read_label_first, read_parallel, read_text_lines


def test_blank_lines_are_kept_or_skipped(write):
    path = write("a.txt", "one\n \nthree\n")
    assert [row.line for row in read_text_lines(path).rows] == [1, 2, 3]
    assert [row.line for row in read_text_lines(path, skip_blank=True).rows] == [1, 3]


def test_parallel_files_must_be_of_one_length(write):
    texts = write("train_text.txt", "a\nb\n")
    table = read_parallel(texts, write("train_labels.txt", "0\n1\n"))
    assert [row.values for row in table.rows] == [{"text": "a", "label": "0"}, {"text": "b", "label": "1"}]
    with pytest.raises(DataError, match=r"train_text.txt` has 2 lines and .*short.txt` has 1"):
        read_parallel(texts, write("short.txt", "0\n"))


def test_trec_has_the_label_first(write):
    table = read_label_first(write("a.label", "DESC:manner How ?\nNUM:date When ?\n"))
    assert [row.values["label"] for row in table.rows] == ["DESC", "NUM"]
    assert table.rows[0].values["text"] == "How ?"
    with pytest.raises(DataError, match="line 2 does not read `LABEL:detail text`: `How `"):
        read_label_first(write("b.label", "A:b c\nHow \n"))


def test_class_folders_look_at_the_classes_only(write, tmp_path):
    write("train/neg/1.txt", "bad")
    write("train/pos/2.txt", "good")
    write("train/unsup/3.txt", "who knows")
    table = read_class_folders(tmp_path / "train", classes=("neg", "pos"))
    assert [(row.values["text"], row.values["label"]) for row in table.rows] == [("bad", "neg"), ("good", "pos")]
