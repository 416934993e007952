"""The page of claims says what the results say, and the list of benchmarks names every one."""

from __future__ import annotations

import importlib
import re

import pytest
import yaml

from tests.conftest import ROOT
from tests.docs.pages import DOCS

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def results(monkeypatch):
    """The script that writes the page."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("results")


def claims():
    papers = yaml.safe_load((BENCHMARKS / "hypotheses.yaml").read_text(encoding="utf-8"))["papers"]
    return [claim for paper in papers for claim in paper["claims"]]


def test_the_page_is_the_one_measured(results):
    assert results.PAGE.read_text(encoding="utf-8") == results.page(), "run: python docs/results.py"


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim["claim"][:40])
def test_a_verdict_rests_on_results_or_is_open(results, claim):
    by_hand = "verdict" in claim
    assert by_hand == ("found" in claim)
    assert not (by_hand and "lead" in claim)
    assert results.verdict(claim) in results.VERDICTS
    assert not by_hand or ("{" in claim["found"] and claim["verdict"] != "open")
    assert claim["hours"] > 0


@pytest.mark.parametrize(
    "name", sorted({n for c in claims() for n in re.findall(r"slimformer(?:\.\w+)+", c["command"])})
)
def test_commands_name_functions_that_there_are(name):
    module, _, function = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), function))


def test_commands_name_scripts_that_there_are():
    scripts = {name for claim in claims() for name in re.findall(r"benchmarks/(\w+\.py)", claim["command"])}
    assert len(scripts) > 8
    assert [name for name in scripts if not (BENCHMARKS / name).is_file()] == []


def test_commands_have_flags_that_their_scripts_take():
    shared = (BENCHMARKS / "harness" / "__init__.py").read_text(encoding="utf-8")
    for command in {claim["command"] for claim in claims() if claim["command"].startswith("python benchmarks/")}:
        script = (BENCHMARKS.parent / command.split()[1]).read_text(encoding="utf-8")
        trains = "training_options" in script
        for flag in re.findall(r" (--[\w-]+)", command):
            assert f'"{flag}"' in script or (f'"{flag}"' in shared and (trains or flag != "--bf16")), command


@pytest.mark.parametrize(
    ("mean", "half", "par", "expected"),
    [
        (1.0, 0.5, False, "shown"),
        (0.4, 0.5, False, "undecided"),
        (-0.4, 0.5, False, "undecided"),
        (-1.0, 0.5, False, "differs"),
        (-0.4, 0.5, True, "shown"),
        (-0.6, 0.5, True, "undecided"),
        (-2.0, 0.5, True, "differs"),
    ],
)
def test_the_interval_decides(results, mean, half, par, expected):
    assert results.decide(mean, half, par) == expected


def test_two_rows_of_equal_spread_have_the_interval_of_students_test(results):
    ahead = results.welch({"mean": 3.0, "deviation": 1.0, "seeds": 3}, {"mean": 1.0, "deviation": 1.0, "seeds": 3})
    assert ahead.mean == 2.0
    assert ahead.half == pytest.approx(2.7764451 * (2 / 3) ** 0.5)  # t with four degrees of freedom


def test_the_list_of_benchmarks_names_every_one():
    listed = re.findall(r"^\| `(\w+\.py)`", (BENCHMARKS / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in BENCHMARKS.glob("*.py"))


def test_what_the_list_calls_measured_has_results():
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for name, state in re.findall(r"^\| `(\w+)\.py` .*\| ([^|]+) \|$", text, flags=re.MULTILINE):
        assert (BENCHMARKS / "results" / f"{name}.json").is_file() == (state != "not measured"), name
