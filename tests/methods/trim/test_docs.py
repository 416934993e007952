"""The page about trimming runs as it stands."""

from __future__ import annotations

from tests.test_docs import run


def test_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("methods/trim.md")
    assert names["model"].config.vocab_size == len(names["smaller"]) == len(names["kept"]) < 1000
