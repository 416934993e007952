"""The order of labels, which decides what an output of the head means."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace

import pytest
from PIL import Image

from slimformer.errors import DataError
from slimformer.tasks import known
from slimformer.tasks.columns import listed
from slimformer.tasks.preset import preset_of
from slimformer.tasks.task import Task

CODE = """
from pathlib import Path
from slimformer.tasks import get_task
print(get_task("classification").load(Path({folder!r}), ["train"]).labels)
"""


def test_labels_have_one_order_whatever_python_hashes_by(tmp_path):
    """`nan` is a number that is neither less nor more than any other."""
    labels = ["3", "nan", "1", "b", "NaN", "2", "a", "-inf", "0", "10"]
    rows = [f"text {number}\t{label}" for number, label in enumerate(labels)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    orders = set()
    for seed in range(3):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", CODE.format(folder=str(tmp_path))]
        orders.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert orders == {f"{['-inf', '0', '1', '2', '3', '10', 'NaN', 'a', 'b', 'nan']}\n"}


#: What a file of each reader looks like, with a label that no task has; `{text}` stands for its text columns.
ODD = "no such label"


def odd_table(layout, delimiter):
    columns = layout.options.get("columns")
    label = layout.label if isinstance(layout.label, str) else layout.label[0]
    names = columns or (*layout.text, label)
    row = [ODD if name == label else f"some {name}" for name in names]
    return "".join(delimiter.join(each) + "\n" for each in ([] if columns else [names]) + [row])


def write_odd(folder, layout, pattern):
    """Data of a layout whose only label is odd: what a message calls it, and the label as the message spells it."""
    path = folder / pattern.format(language="en").replace("*", "x")
    match layout.reader:
        case "csv" | "tsv":
            path.write_text(odd_table(layout, "," if layout.reader == "csv" else "\t"))
            return path, ODD
        case "jsonl":
            path.write_text(json.dumps({"text": "some text", "label": ODD}) + "\n")
            return path, ODD
        case "trec":
            path.write_text("ODD:one What ?\n")
            return path, "ODD"
        case "text-and-labels":
            path.write_text("some text\n")
            (folder / path.name.replace("_text", "_labels")).write_text("9\n")
            return path, "9"
        case "conll":
            path.write_text("word B-odd\n")
            return path, "B-odd"
        case "conllu":
            path.write_text("\t".join(["1", "word", "word", "ODD", *"______"]) + "\n")
            return path, "ODD"
        case "idx":
            path.write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, 1, 1, 1) + b"\0")
            labels = path.name.replace("images", "labels").replace("idx3", "idx1")
            (folder / labels).write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 1) + b"\x0b")
            return path, "11"
        case "images":
            (path / "odd").mkdir(parents=True)
            Image.new("RGB", (2, 2)).save(path / "odd" / "one.png")
            return path / "odd" / "one.png", "odd"


LABELLED = [
    (name, number)
    for name in known()
    for number, layout in enumerate(preset_of(name).layouts)
    if preset_of(name).labels and layout.reader != "class-folders" and "*.zip" not in layout.files.get("train", ())
]


@pytest.mark.parametrize(("name", "number"), LABELLED)
def test_a_preset_refuses_labels_that_are_not_its_own(tmp_path, name, number):
    preset = preset_of(name)
    layout = preset.layouts[number]
    (split, (pattern, *_)), *_ = layout.files.items()
    path, label = write_odd(tmp_path, layout, pattern)
    if layout.carve:  # which needs several rows, and is not what this is about
        preset = replace(preset, layouts=(replace(layout, carve=None),))
    with pytest.raises(DataError) as caught:
        Task(preset).load(tmp_path, [split])
    message = str(caught.value)
    assert message.startswith(f"`{path}` line 1: " if path.suffix == ".png" else f"`{path}` line ")
    assert f": label `{label}` is not one of {listed(preset.labels)}, the labels of task `{name}`; " in message
    assert message.endswith(f"; mend the row, or give `--task {preset.kind}` for labels of your own")
