"""A single file, divided by shares: in Python, and from an artifact that remembers them."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slimformer.errors import ConfigError, DataError
from slimformer.tasks import get_task
from slimformer.tasks.options import TaskOptions, load_data, task_record, with_recorded

ROWS = [(f"text number {number}", "yes" if number % 3 else "no") for number in range(60)]
SPLITS = ("train", "dev", "test")


def csv(rows=ROWS):
    return "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)


def texts(data):
    return {split: [example["text"] for example in rows] for split, rows in data.splits.items()}


def load(path, splits=SPLITS, shares="0.7,0.2,0.1", **options):
    return get_task(options.pop("task", "classification")).load(path, splits, shares=shares, **options)


def test_a_file_is_divided_by_its_texts(write):
    path = write("reviews.csv", csv([*ROWS, *ROWS[:5]]))
    data = load(path)
    parts = texts(data)
    assert {split: len(set(part)) for split, part in parts.items()} == {"train": 42, "dev": 12, "test": 6}
    assert sum(len(set(part)) for part in parts.values()) == len(set().union(*parts.values()))
    (note,) = data.notes
    assert note == f"of the 65 rows of `{path}`, shares give {len(parts['train'])} to train, " + ", ".join(
        f"{len(parts[split])} to {split}" for split in ("dev", "test")
    )
    for split in SPLITS:  # whatever is asked for besides
        assert texts(load(path, [split])) == {split: parts[split]}
    assert texts(load(path, shares=[0.7, 0.2, 0.1])) == parts


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(ROWS), min_size=6, unique=True), st.integers())
def test_the_order_of_rows_changes_nothing(write, rows, seed):
    parts = texts(load(write("all.csv", csv(rows)), labels=["no", "yes"]))
    shuffled = random.Random(seed).sample(rows, len(rows))
    again = texts(load(write("all.csv", csv(shuffled)), labels=["no", "yes"]))
    assert {split: sorted(part) for split, part in again.items()} == {
        split: sorted(part) for split, part in parts.items()
    }


def test_a_tenth_is_the_share_that_is_held_out_without_any(write):
    path = write("reviews.csv", csv())
    assert texts(load(path, ("train", "dev"), "0.9,0.1")) == texts(get_task("classification").load(path))


def test_a_train_file_is_divided_when_asked_to(write):
    assert len(load(write("train.csv", csv()))["test"]) == 6
    with pytest.raises(DataError, match=r"is a train split by its name, .* or `--shares` to divide it"):
        get_task("classification").load(write("train.csv", csv()))


def test_running_text_is_divided_in_order(write):
    path = write("book.txt", "".join(f"line {number}\n" for number in range(20)))
    data = load(path, shares="0.5,0.25,0.25", task="language-modelling")
    assert texts(data)["dev"] == [f"line {number}" for number in range(10, 15)]


def test_a_file_of_a_preset_is_divided_by_its_groups(write):
    rows = "".join(f"{n}\tquestion {n % 10}?\tsentence {n}\tentailment\n" for n in range(40))
    path = write("train.tsv", "index\tquestion\tsentence\tlabel\n" + rows)
    parts = texts(load(path, task="qnli", shares="0.6,0.2,0.2"))
    assert {split: len(set(part)) for split, part in parts.items()} == {"train": 6, "dev": 2, "test": 2}
    assert {split: len(part) for split, part in parts.items()} == {"train": 24, "dev": 8, "test": 8}


def test_what_cannot_be_divided_is_refused(write, tmp_path):
    path = write("reviews.csv", csv())
    with pytest.raises(DataError, match="is divided into train and dev, but test was asked for; give a third share"):
        load(path, shares="0.9,0.1")
    with pytest.raises(DataError, match="2 different rows are too few to cut train, dev, test from"):
        load(write("few.csv", csv(ROWS[:2])))
    with pytest.raises(
        DataError, match=r"shares divide a single file, and `.*` is a folder, whose files are its splits"
    ):
        load(tmp_path)
    with pytest.raises(DataError, match=r"dev.csv` is a dev split by its name; give one file, or leave them out"):
        load(write("dev.csv", csv()), ["dev"])
    with pytest.raises(DataError, match="`owner/name` is a data set of the Hub, which has its splits"):
        load("owner/name")


def test_shares_come_from_a_config_as_a_text_or_a_list(tmp_path):
    file = tmp_path / "run.yaml"
    for written in ("0.8,0.1,0.1", "[0.8, 0.1, 0.1]"):
        file.write_text(f"shares: {written}\ntext-column: 1\nheader: false\nquoting: none\n")
        options = TaskOptions.read(file, {})
        assert options.given() == {"shares": "0.8,0.1,0.1", "text_column": "1", "header": False, "quoting": "none"}
    with pytest.raises(ConfigError, match=r"`shares` is `0.8,0.3`: they add up to 1.1, not to 1; give parts of 1"):
        TaskOptions.make({"shares": "0.8,0.3"})


def test_what_is_recorded_serves_the_same_data_and_is_left_out_where_it_does_not_fit(write, tmp_path):
    path = write("all/reviews.csv", "".join(f"{label},{text}\n" for text, label in ROWS))
    options = TaskOptions(
        task="classification", data=str(path), text_column="1", label_column="0", header=False, shares="0.7,0.2,0.1"
    )
    data = load_data(options, ("train", "dev"))
    recorded = task_record(data, options)["settings"]
    assert recorded == {"text_column": "1", "label_column": "0", "header": False, "shares": "0.7,0.2,0.1"}

    again = with_recorded(TaskOptions(task="classification", data=str(path)), recorded)
    assert again == options
    assert len(load_data(again, ("test",))["test"]) == 6

    test = with_recorded(TaskOptions(task="classification", data=str(write("all/test.csv", "yes,a\nno,b\n"))), recorded)
    assert (test.shares, test.header) == (None, False)
    assert len(load_data(test, ("test",))["test"]) == 2
    write("own/dev.jsonl", '{"text": "a", "label": "yes"}\n{"text": "b", "label": "no"}\n')
    own = {"task": "classification", "data": str(tmp_path / "own"), "text_column": "text", "label_column": "label"}
    assert len(load_data(with_recorded(TaskOptions(**own), recorded), ("dev",))["dev"]) == 2
    # What an artifact of before knows nothing of is as it was.
    assert with_recorded(TaskOptions(**own), {"max_length": 8}).given() == {**own, "max_length": 8}
