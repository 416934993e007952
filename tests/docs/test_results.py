"""Figures in the docs are the ones measured."""

from __future__ import annotations

import json
import re

from tests.conftest import ROOT


def test_figures_in_the_docs_are_the_ones_measured():
    """A table under `<!-- results: NAME KEY -->` repeats that part of benchmarks/results/NAME.json."""
    checked = 0
    for page in (ROOT / "docs").rglob("*.md"):
        marked = re.findall(r"<!-- results: (\w+) (\w+) -->\s+((?:\|.*\n)+)", page.read_text(encoding="utf-8"))
        for name, key, table in marked:
            measured = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["result"][key]
            head, _, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines())
            shown: dict = {row[0]: dict(zip(head[1:], map(float, row[1:]), strict=True)) for row in rows}
            if not isinstance(next(iter(measured.values())), dict):
                shown = {name: next(iter(values.values())) for name, values in shown.items()}
            else:
                measured = {name: {each: values.get(each) for each in head[1:]} for name, values in measured.items()}
            assert shown == measured, page
            checked += 1
    assert checked >= 2
