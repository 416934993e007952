"""The page about masks runs as it stands."""

from __future__ import annotations

from tests import corpus
from tests.docs.test_pages import run


def test_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corpus.data_folder(tmp_path / "reviews", train=32, dev=16)
    names = run("methods/mask.md")
    assert [len(each) for each in names["answers"].values()] == [2, 1]
    assert names["bank"].tasks == ("reviews",)
    assert names["together"].how in ("labels", "logits", "probabilities")
    assert "accuracy" in capsys.readouterr().out
