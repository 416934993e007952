"""Generic tasks on anybody's own files: what is found, what is guessed, and what is refused before training."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest

from slimformer.errors import DataError
from slimformer.tasks import get_task

ROWS = [(f"text number {number}", "yes" if number % 3 else "no") for number in range(60)]


def tsv(rows=ROWS, header="text\tlabel"):
    return "\n".join([header, *("\t".join(row) for row in rows)]) + "\n"


def test_every_format_gives_the_same_examples(write, tmp_path):
    csv = "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS)
    jsonl = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)
    for name, content in {"train.tsv": tsv(), "train.csv": csv, "train.jsonl": jsonl, "train.txt": tsv()}.items():
        write(f"{name.replace('.', '-')}/{name}", content)
        write(f"{name.replace('.', '-')}/validation.{name.split('.')[1]}", content)
    (tmp_path / "parquet").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "dev"):
        half = ROWS[30:] if "00001" in name else ROWS[:30] if "00000" in name else ROWS
        table = pyarrow.table({"text": [text for text, _ in half], "label": [label for _, label in half]})
        pyarrow.parquet.write_table(table, tmp_path / "parquet" / f"{name}.parquet")
    loaded = [get_task("classification").load(folder) for folder in sorted(tmp_path.iterdir())]
    assert len(loaded) == 5
    for data in loaded:
        assert data.labels == ["no", "yes"]
        assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 60, "dev": 60}
        assert list(data["train"]) == list(loaded[0]["train"])
        assert data["dev"][4] == {"text": "text number 4", "label": 1}


def test_a_single_file_has_a_tenth_held_out(write):
    path = write("reviews.tsv", tsv([*ROWS, ROWS[0]]))
    data = get_task("classification").load(path)
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 55, "dev": 6}
    texts = {split: {example["text"] for example in rows} for split, rows in data.splits.items()}
    assert not texts["train"] & texts["dev"]
    assert data.notes == [f"dev: a tenth of `{path}`, 6 of 61 rows"]
    assert list(get_task("classification").load(path, ["dev"])["dev"]) == list(data["dev"])
    assert len(get_task("classification").load(path, ["train"])["train"]) == 61
    assert len(get_task("classification").load(path, ["test"])["test"]) == 61


def test_a_file_named_after_a_split_is_that_split(write):
    path = write("my-dev.tsv", tsv())
    assert len(get_task("classification").load(path, ["dev"])["dev"]) == 60
    with pytest.raises(DataError, match=r"my-dev.tsv` is a dev split by its name, but `train` was asked for"):
        get_task("classification").load(path)


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "dev", "test")])
def test_no_test_split_is_cut_from_a_single_file(write, splits):
    with pytest.raises(DataError, match="is one file, but train and"):
        get_task("classification").load(write("all.tsv", tsv()), splits)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("text\tlabel", ("text",)),
        ("id\tsentence\tLabel", ("sentence",)),
        ("premise\thypothesis\tlabel", ("premise", "hypothesis")),
        ("idx\tabstract\tlabel", ("abstract",)),
        ("sentence_A\tsentence_B\tclass", ("sentence_A", "sentence_B")),
        ("review\tstars", ("review",)),
    ],
)
def test_columns_are_guessed_where_there_is_no_doubt(write, header, expected):
    count = len(header.split("\t"))
    rows = [tuple([f"{number} words" for number in range(count - 1)] + [label]) for label in "ab"]
    data = get_task("classification").load(write("test.tsv", tsv(rows, header)), ["test"])
    assert ("text_pair" in data["test"][0]) == (len(expected) == 2)
    assert data["test"][0]["text"] == f"{header.split(chr(9)).index(expected[0])} words"
    assert data.labels == ["a", "b"]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("title\tabstract\tlabel", "text: it has the columns `title`, `abstract`, `label`; name it with text_column"),
        ("text\tlabel\tclass", "which column holds the label: it has the columns `text`, `label`, `class`"),
        ("a\tb\tc", "does not tell which column holds the label"),
    ],
)  # fmt: skip
def test_doubt_is_an_error_that_lists_the_columns(write, header, message):
    with pytest.raises(DataError, match=message):
        get_task("classification").load(write("test.tsv", tsv([("x", "y", "z")], header)), ["test"])


def test_columns_can_be_given(write):
    path = write("test.tsv", tsv([("1", "one", "uno", "A"), ("2", "two", "due", "B")], "id\ten\tit\tkind"))
    load = get_task("classification").load
    data = load(path, ["test"], text_column="en, it", label_column="kind")
    assert data["test"][1] == {"text": "two", "text_pair": "due", "label": 1}
    assert load(path, ["test"], text_column=["it"], label_column="kind")["test"][0] == {"text": "uno", "label": 0}
    with pytest.raises(DataError, match=r"has no column `de`; it has the columns `id`, .*choose with text_column"):
        load(path, ["test"], text_column="de", label_column="kind")
    with pytest.raises(DataError, match=r"test.tsv` has no column `Kind`"):
        load(path, ["test"], text_column="en", label_column="Kind")


def test_a_folder_without_the_split_names_what_it_looked_for_and_found(write, tmp_path):
    write("train.tsv", tsv())
    write("notes.md", "x")
    with pytest.raises(
        DataError,
        match=r"has no dev split; looked for files named dev, .*found: notes.md, train.tsv; add such a file$",
    ):
        get_task("classification").load(tmp_path)
    write("dev.csv", "text,label\na,b\n")
    write("valid.tsv", tsv())
    with pytest.raises(DataError, match=r"has several files for the dev split: dev.csv, valid.tsv"):
        get_task("classification").load(tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "x"), ("b", " ")], r"train.tsv` line 3: the label in column `label` is empty"),
        ([("a", "x"), (" ", "y")], r"train.tsv` line 3: the text in column `text` is empty"),
        ([("a", "x"), ("b", "x")], r"train.tsv` line 2: every row has the label `x`"),
        ([(f"{n}", f"{n}") for n in range(25)], "all 25 rows have different labels, the first `0`"),
    ],
)
def test_labels_are_checked(write, rows, message):
    with pytest.raises(DataError, match=message):
        get_task("classification").load(write("train.tsv", tsv(rows)), ["train"])


def test_a_label_that_train_does_not_have_is_named(write, tmp_path):
    write("train.tsv", tsv())
    write("dev.tsv", tsv([("fine", "yes"), ("odd", "maybe")]))
    with pytest.raises(
        DataError, match=r"dev.tsv` line 3: label `maybe` is not one of `no`, `yes`, the labels of train"
    ):
        get_task("classification").load(tmp_path)
    data = get_task("classification").load(tmp_path, labels=["yes", "no", "maybe"])
    assert data["dev"][1]["label"] == 2


def test_the_label_list_of_a_trained_model_is_kept(write):
    path = write("test.tsv", tsv([("a", "1"), ("b", "3")]))
    assert get_task("classification").load(path, ["test"], labels=["3", "2", "1"])["test"][0]["label"] == 2
    with pytest.raises(
        DataError, match=r"test.tsv` line 3: label `3` is not one of `0`, `1`, the labels of the model; mend the row"
    ):
        get_task("classification").load(path, ["test"], labels=["0", "1"])
    with pytest.raises(DataError, match="label `0` is in the label list twice"):
        get_task("classification").load(path, ["test"], labels=["0", "0"])


def test_numbers_are_the_same_label_however_written(write):
    path = write(
        "train.jsonl",
        "".join(f'{{"text": "row", "label": {label}}}\n' for label in ("1", "1.0", '"10"', "2")),
    )
    data = get_task("classification").load(path, ["train"])
    assert data.labels == ["1", "2", "10"]
    assert [example["label"] for example in data["train"]] == [0, 0, 2, 1]
    truths = write("bool.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": false}\n')
    assert get_task("classification").load(truths, ["train"]).labels == ["false", "true"]


def test_a_head_with_too_few_outputs_is_refused_by_row(write):
    data = get_task("classification").load(write("train.tsv", tsv([("a", "x"), ("b", "y"), ("c", "z")])), ["train"])
    data.check_head(3)
    with pytest.raises(
        DataError, match=r"train.tsv` line 4: label `z` is number 3 of 3, but the model's head has 2 outputs"
    ):
        data.check_head(2)


@pytest.mark.parametrize("value", ["nan", "inf", "", "high"])
def test_targets_of_regression_are_finite_numbers(write, value):
    path = write("train.tsv", tsv([("a", "1.5"), ("b", value)], "text\tscore"))
    with pytest.raises(DataError, match=rf"train.tsv` line 3: `{value}` in column `score` is not a finite number"):
        get_task("regression").load(path, ["train"])


def test_regression(write):
    data = get_task("regression").load(write("train.tsv", tsv([("a", "1.5"), ("b", "-2")], "text\tscore")), ["train"])
    assert [example["label"] for example in data["train"]] == [1.5, -2.0]
    assert data.config_kwargs() == {"num_labels": 1, "problem_type": "regression"}
    assert (data.labels, data.primary_metric, data.greater_is_better) == (None, "pearson", True)


def test_limits_keep_all_labels_and_choose_the_same_rows(write):
    path = write("train.tsv", tsv(sorted(ROWS, key=lambda row: row[1])))
    data = get_task("classification").load(path, ["train"], limit=12)
    assert len(data["train"]) == len(data) == 12
    assert {example["label"] for example in data["train"]} == {0, 1}
    assert list(data["train"]) == list(get_task("classification").load(path, ["train"], limit=12)["train"])
    assert data["train"].at(0).startswith(f"`{path}` line ")


def test_only_the_splits_asked_for_are_read(write, tmp_path):
    write("dev.tsv", tsv())
    write("train.tsv", b"\xff")
    data = get_task("classification").load(tmp_path, ["dev"])
    with pytest.raises(DataError, match="split `train` was not loaded; loaded: dev"):
        data["train"]


def test_unknown_tasks_and_endings(write):
    known = r"task `sst3` is not known \(do you mean `sst2`\?\); give one of: .*classification.*sst2"
    with pytest.raises(DataError, match=known):
        get_task("sst3")
    assert get_task("SQuAD-v2").name == "squad_v2"
    with pytest.raises(
        DataError, match=r"ends in `.xlsx`, which no reader knows; give a file that ends in one of: .bio"
    ):
        get_task("classification").load(write("data.xlsx", "x"))
    with pytest.raises(DataError, match="task `classification` has no languages to choose from, but language is `de`"):
        get_task("classification").load(write("data.csv", "x"), language="de")
    with pytest.raises(DataError, match="task `classification` has no objective, but `masked` was given"):
        get_task("classification").load(write("data.csv", "x"), objective="masked")
