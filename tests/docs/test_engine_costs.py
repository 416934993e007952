"""The page of the engine shows what was measured."""

from __future__ import annotations

import importlib
import json

import pytest

from tests.docs.pages import DOCS

CELL = {"tokens": 16, "padded": 16, "ms": {"slimformer, ternary": 2.0, "torch, float32": 20.123, "other": 1.5}}


@pytest.fixture
def costs(monkeypatch):
    """The script that writes the tables."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("engine_costs")


@pytest.fixture
def kept(costs, monkeypatch, tmp_path):
    """Has the script read a result that is given to it."""

    def keep(result: dict) -> None:
        record = {
            "benchmark": "runtime",
            "versions": {"torch": "2", "numpy": "2"},
            "machine": {"processor": "One of them", "cores": 2, "threads": 2},
            "result": result,
        }
        (tmp_path / "runtime.json").write_text(json.dumps(record))
        monkeypatch.setattr(costs, "RESULTS", tmp_path)

    return keep


def test_the_tables_are_the_ones_measured(costs):
    page = costs.PAGE.read_text(encoding="utf-8")
    shown = page.partition(costs.BEGIN)[2].partition(costs.END)[0].strip()
    assert shown == costs.text(), "run: python docs/engine_costs.py"


def test_a_part_that_was_measured_is_shown_and_who_is_ahead_named(costs, kept):
    kept({"instruction_set": "avx2", "measured": {"encoders": {}}, "encoders": {"MiniLM-L6": {"1x16": CELL}}})
    text = costs.text()
    assert "### `avx2`: One of them, 2 cores" in text
    assert "| torch, float32 | 20.1 |" in text
    assert "Faster than slimformer, ternary: other (MiniLM-L6, 1x16: 1.5 against 2 ms)." in text


def test_a_missed_target_is_shown_as_missed(costs, kept):
    target = {"what": "speed", "target": 2.0, "least": 1.5, "where": "1x16", "missed": ["1x16: 1.50"], "met": False}
    kept({"instruction_set": "avx2", "measured": {"encoders": {}}, "targets": [target]})
    assert "| speed | 2 | 1.5 (1x16) | no: 1x16: 1.50 |" in costs.text()


def test_results_of_fewer_measurements_are_not_shown(costs, kept):
    kept({"instruction_set": "avx2", "encoders": {"MiniLM-L6": {"1x16": CELL}}})
    assert costs.text() == "Nothing is measured yet."


def test_growth_has_a_picture_of_its_result(costs, kept):
    places = {"1": CELL["ms"], "2": CELL["ms"]}
    kept({"instruction_set": "avx2", "measured": {"growth": {}}, "growth": {"layers": places}})
    assert "(../../benchmarks/results/runtime_layers.svg)" in costs.text()
    assert "| layers | 1 | 2 |" in costs.text()
