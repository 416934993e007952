from __future__ import annotations

import pytest
from datasets import ClassLabel, Dataset, Features, Sequence, Value

from slimformer.errors import DataError
from slimformer.tasks import get_task
from slimformer.tasks.readers.hub import HubName, fetch, parse_hub_name, read_dataset


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("imdb", HubName("imdb")),
        ("nyu-mll/glue:sst2", HubName("nyu-mll/glue", "sst2")),
        ("google/xquad:xquad.en", HubName("google/xquad", "xquad.en")),
        ("nyu-mll/glue:sst2@v1.0", HubName("nyu-mll/glue", "sst2", "v1.0")),
        ("me/texts@refs/convert/parquet", HubName("me/texts", None, "refs/convert/parquet")),
        ("me/texts@", None),
        ("me/texts@-v", None),
        ("./imdb", None),
        ("a/b/c", None),
        ("two words", None),
        ("", None),
    ],
)
def test_names(text, name):
    assert parse_hub_name(text) == name
    assert name is None or str(name) == text


def test_class_numbers_become_names():
    features = Features(
        {
            "text": Value("string"),
            "label": ClassLabel(names=["neg", "pos"]),
            "tags": Sequence(ClassLabel(names=["O", "B"])),
        }
    )
    dataset = Dataset.from_dict({"text": ["a", "b"], "label": [1, -1], "tags": [[0, 1], [1]]}, features)
    table = read_dataset(HubName("me/mine"), "train", dataset)
    assert table.columns == ("text", "label", "tags")
    assert table.rows[0].values == {"text": "a", "label": "pos", "tags": ["O", "B"]}
    assert table.rows[1].values["label"] is None
    assert table.rows[1].at() == "`me/mine train` line 2"


def test_what_cannot_be_fetched_is_one_line():
    with pytest.raises(
        DataError, match=r"^`nobody/nothing:x` is no file or folder here and could not be loaded"
    ) as error:
        fetch(HubName("nobody/nothing", "x"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", ["./nope", "no such place", "train.csv", "a/b/c"])
def test_what_is_neither_path_nor_name_never_reaches_the_hub(source):
    with pytest.raises(DataError, match=rf"nothing at `{source}`; give a folder, a file or a Hub name"):
        get_task("classification").load(source)


def test_a_generic_task_needs_a_source():
    with pytest.raises(DataError, match="task `classification` has no data of its own"):
        get_task("classification").load()
