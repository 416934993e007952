"""The order of labels, which decides what an output of the head means."""

from __future__ import annotations

import os
import subprocess
import sys

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
