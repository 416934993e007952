"""The page about masks and the example run as they stand."""

from __future__ import annotations

import runpy

from tests import corpus
from tests.conftest import ROOT
from tests.test_docs import run


def test_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corpus.data_folder(tmp_path / "reviews", train=32, dev=16)
    names = run("methods/mask.md")
    assert [len(each) for each in names["answers"].values()] == [2, 1]
    assert names["bank"].tasks == ("reviews",)
    assert names["together"].how in ("labels", "logits", "probabilities")
    assert "accuracy" in capsys.readouterr().out


def test_the_example(capsys):
    runpy.run_path(str(ROOT / "examples" / "mask.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mood: accuracy")
    assert lines[-2] == "subject ['film', 'food']"
