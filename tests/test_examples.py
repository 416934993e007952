"""The example scripts, as they are or with fewer steps."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from slimformer import artifact
from tests.docs.prepared import prepare
from tests.docs.running import shorten

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.mark.slow
def test_a_student_from_a_text_of_ones_own(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("It was a dark and stormy night; the rain fell in torrents.\n" * 400)
    example("distill").main(["book.txt"], steps=2)
    assert "parameters in small" in capsys.readouterr().out
    artifact.verify(tmp_path / "small")
    assert (tmp_path / "small.html").is_file()


@pytest.mark.slow
def test_two_tasks_on_one_base(example, capsys):
    example("mask").main()
    shown = capsys.readouterr().out
    assert "subject ['film', 'food']" in shown
    assert "mood ['good', 'bad']" in shown


@pytest.mark.slow
def test_a_ternary_classifier(example, capsys):
    example("quantize").main()
    shown = capsys.readouterr().out
    assert "ternary: accuracy 1.000 on dev, 5.0 MiB" in shown
    assert shown.index("'good'") < shown.index("'bad'")


@pytest.mark.slow
def test_a_classifier_of_every_size(example, capsys):
    example("elastic").main(steps=4)
    shown = capsys.readouterr().out
    assert all(f"{size}: accuracy" in shown for size in ("S", "M", "L", "XL"))
    assert "parameters in small" in shown


@pytest.mark.slow
def test_a_domain_and_a_ternary_classifier_of_it(example, capsys):
    example("adapt").main(steps=30)
    shown = capsys.readouterr().out
    before, after = map(float, re.findall(r"held-out loss ([\d.]+) before, ([\d.]+) after", shown)[0])
    assert after < 0.9 * before
    assert "ternary: accuracy" in shown
    assert "6.0 MiB" in shown


@pytest.mark.slow
def test_a_first_job_in_a_notebook(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    prepare(["reviews.tsv"], tmp_path)
    cells = json.loads((EXAMPLES / "first_job.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(shorten("".join(cell["source"])), names)
    assert "shipped" in capsys.readouterr().out
    artifact.verify(tmp_path / "small-classification")
