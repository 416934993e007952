from __future__ import annotations

import pytest

from slimformer.errors import DataError
from slimformer.tasks.readers.text import (
    labels_beside,
    read_class_folders,
    read_label_first,
    read_mapping,
    read_parallel,
    read_text_lines,
)


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


def test_a_mapping_names_labels(write):
    texts, labels = write("train_text.txt", "a\nb\n"), write("train_labels.txt", "0\n1\n")
    assert labels_beside(texts) == labels
    assert labels_beside(labels) is None
    assert read_parallel(texts, labels).label_names == {}
    mapping = write("mapping.txt", "0\tsad\n1\t❤\t_red_heart_\n")
    assert read_parallel(texts, labels).label_names == {"0": "sad", "1": "❤"}
    write("train_labels.txt", "0\n7\n")
    message = rf"train_labels.txt` line 2: label `7` is not one of `0`, `1`, which `{mapping}` names"
    with pytest.raises(DataError, match=message):
        read_parallel(texts, labels)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\tsad\n1\n", "line 2 reads `1`; write a label, a tab and its name"),
        ("0 sad\n", "line 1 reads `0 sad`"),
        ("0\tsad\n0\tglad\n", "line 2: `0` is there twice"),
        ("0\tsad\n1\tsad\n", "line 2: `sad` is there twice"),
    ],
)
def test_a_broken_mapping_names_the_line(write, content, message):
    with pytest.raises(DataError, match=f"mapping.txt` {message}"):
        read_mapping(write("mapping.txt", content))


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
    with pytest.raises(DataError, match=r"has no texts in folders called `a`, `b`, .*; it has `neg`, `pos`, `unsup`;"):
        read_class_folders(tmp_path / "train", classes=("a", "b"))
