"""How somebody's own files are written: without a header, with quotes, or in TweetEval's pairs of files."""

from __future__ import annotations

import pytest

from slimformer.errors import DataError
from slimformer.tasks import get_task

ROWS = [(f"text number {number}", "yes" if number % 3 else "no") for number in range(12)]


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t"), ("txt", "\t")])
def test_a_file_without_a_header(write, tmp_path, ending, delimiter):
    for split in ("train", "dev"):
        write(f"{split}.{ending}", "".join(f"{label}{delimiter}{text}\n" for text, label in ROWS))
    task = get_task("classification")
    data = task.load(tmp_path, header=False, text_column="1", label_column="0")
    assert (len(data["train"]), data.labels) == (12, ["no", "yes"])
    assert data["dev"][0] == {"text": "text number 0", "label": 0}
    hint = "this looks like a file without a header: give `--no-header`, and columns by their numbers from 0$"
    with pytest.raises(DataError, match=rf"does not tell which column holds the label: it has .*; {hint}"):
        task.load(tmp_path)
    with pytest.raises(DataError, match=rf"has no column `0`; it has the columns `no`, `text number 0`; {hint}"):
        task.load(tmp_path, text_column="1", label_column="0")
    with pytest.raises(DataError, match=r"it has the columns `0`, `1`; name it with label_column$"):
        task.load(tmp_path, header=False)
    with pytest.raises(DataError, match="has no column `2`; it has the columns `0`, `1`; choose with label_column"):
        task.load(tmp_path, header=False, text_column="1", label_column="2")


def test_a_pair_without_a_header(write):
    path = write("pairs.csv", "".join(f"{n},a {n},b {n},{n}.5\n" for n in range(20)))
    data = get_task("regression").load(path, ["train"], header=False, text_column="1,2", label_column="3")
    assert data["train"][2] == {"text": "a 2", "text_pair": "b 2", "label": 2.5}


def test_a_known_column_that_is_doubtful_is_no_missing_header(write):
    with pytest.raises(DataError, match="name it with label_column, or call it `label` in the file"):
        get_task("classification").load(write("a.csv", "text,kind,sort\na,b,c\n"))


def test_quotes_by_name(write):
    path = write("train.tsv", 'text\tlabel\n"say ""hi"""\tyes\n"two\nlines"\tno\n')
    data = get_task("classification").load(path, ["train"], quoting="csv")
    assert [example["text"] for example in data["train"]] == ['say "hi"', "two\nlines"]
    bare = write("train.csv", 'text,label\nsay "hi,yes\n"open,no\n')
    data = get_task("classification").load(bare, ["train"], quoting="none")
    assert [example["text"] for example in data["train"]] == ['say "hi', '"open']
    with pytest.raises(DataError, match="is not valid CSV"):
        get_task("classification").load(bare, ["train"])


@pytest.mark.parametrize("option", [{"header": False}, {"quoting": "csv"}])
def test_what_is_for_tables_is_refused_elsewhere(write, option):
    path = write("train.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n')
    with pytest.raises(
        DataError, match=r"train.jsonl` is read as `jsonl`, and `--.*` is for CSV and TSV; leave it out"
    ):
        get_task("classification").load(path, ["train"], **option)
    with pytest.raises(
        DataError, match=r"task `sst2` knows how its files are written, .* give `--task classification`"
    ):
        get_task("sst2").load(path, ["train"], **option)
    with pytest.raises(DataError, match=r"`owner/name` is a data set of the Hub, and `--.*` is for CSV and TSV"):
        get_task("classification").load("owner/name", **option)


def tweets(write):
    for split in ("train", "val", "test"):
        write(f"{split}_text.txt", "".join(f"tweet {number} of {split}\n" for number in range(4)))
        write(f"{split}_labels.txt", "0\n1\n1\n0\n")
    return write("mapping.txt", "0\tanger\n1\tjoy\n").parent


@pytest.mark.parametrize("task", ["classification", "tweet-emotion", "retrieval", "multi-label"])
def test_tweeteval_is_read_alike_by_any_task_of_labelled_texts(write, task):
    folder = tweets(write)
    data = get_task(task).load(folder, ["train", "dev", "test"])
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 4, "dev": 4, "test": 4}
    assert data.labels is None or data.labels[:2] == ["anger", "joy"]  # retrieval compares labels and has no list
    assert data["test"][1]["text"] == "tweet 1 of test"
    assert data["dev"].at(1) == f"`{folder}/val_text.txt` line 2"
    (folder / "val_labels.txt").write_text("0\n1\n5\n0\n")
    with pytest.raises(
        DataError, match=r"val_labels.txt` line 3: label `5` is not one of `0`, `1`, which .*mapping.txt`"
    ):
        get_task(task).load(folder)
    (folder / "val_labels.txt").write_text("0\n1\n")
    with pytest.raises(DataError, match=r"val_text.txt` has 4 lines and `.*val_labels.txt` has 2"):
        get_task(task).load(folder)


def test_tweeteval_without_a_mapping_and_as_text_alone(write):
    folder = tweets(write)
    (folder / "mapping.txt").unlink()
    assert get_task("classification").load(folder).labels == ["0", "1"]
    assert get_task("tweet-emotion").load(folder).labels == ["anger", "joy", "optimism", "sadness"]
    assert get_task("language-modelling").load(folder)["dev"][0]["text"] == "tweet 0 of val"


def test_tweeteval_as_one_pair_of_files_is_divided(write):
    write("all_labels.txt", "0\n1\n" * 10)
    path = write("all_text.txt", "".join(f"tweet {number}\n" for number in range(20)))
    data = get_task("classification").load(path, ["train", "dev", "test"], shares="0.8,0.1,0.1")
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 16, "dev": 2, "test": 2}


def test_texts_in_two_splits_are_noted(write, tmp_path):
    rows = {"train": ROWS, "dev": [*ROWS[:2], ("only here", "no"), ("and this", "yes")], "test": [ROWS[0], ROWS[1]]}
    for split, each in rows.items():
        write(f"{split}.tsv", "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in each))
    task = get_task("classification")
    assert task.load(tmp_path).notes == ["2 of the 4 rows of dev (50.0%) have texts that train holds too"]
    assert task.load(tmp_path, ["train", "dev", "test"], limit=3).notes == [
        "2 of the 4 rows of dev (50.0%) have texts that train holds too",
        "2 of the 2 rows of test (100.0%) have texts that train holds too",
        "2 of the 2 rows of test (100.0%) have texts that dev holds too",
    ]
    assert task.load(tmp_path, ["dev"]).notes == []


def test_pairs_and_words_are_compared_as_a_whole(write, tmp_path):
    write("train.csv", "premise,hypothesis,label\na,b,x\na,c,y\n")
    write("dev.csv", "premise,hypothesis,label\na,b,y\nb,a,x\na,d,x\n")
    assert get_task("classification").load(tmp_path).notes == [
        "1 of the 3 rows of dev (33.3%) have texts that train holds too"
    ]
    write("tags/train.conll", "EU A\nrejects B\n\nso B\n")
    write("tags/dev.conll", "EU A\nrejects A\n\nEU A\n")
    assert get_task("tagging").load(tmp_path / "tags").notes == [
        "1 of the 2 rows of dev (50.0%) have texts that train holds too"
    ]


def test_lines_of_running_text_may_come_again(write, tmp_path):
    for split in ("train", "dev"):
        write(f"{split}.txt", "\nAll:\nSpeak, speak.\n")
    assert get_task("language-modelling").load(tmp_path).notes == []


def test_a_first_line_that_may_be_a_text_is_told(write):
    path = write("texts.csv", "It was the best of times and the worst\nIt was the age of wisdom\nIt was\n")
    data = get_task("language-modelling").load(path, ["train"])
    assert len(data["train"]) == 2
    (note,) = data.notes
    assert note.startswith(f"line 1 of `{path}`, `It was the best of times and the worst`, is taken for the name of")
    whole = get_task("language-modelling").load(path, ["train"], header=False)
    assert (len(whole["train"]), whole.notes) == (3, [])
    assert get_task("language-modelling").load(write("b.csv", "passage\nIt was\n"), ["train"]).notes == []
