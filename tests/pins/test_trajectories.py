"""Every command that trains goes on to compute what it computed when its runs were written down."""

from __future__ import annotations

import pytest

from tests.pins import trajectories
from tests.pins.materials import Materials

#: The last bits differ between instruction sets.
NEAR = {"rel": 1e-5, "abs": 1e-6}
#: What a sensitive run keeps to on another processor than the one that recorded it.
ROUGHLY = {"rel": 0.05, "abs": 0.02}
REAL = frozenset({"minilm", "minilm-classifier"})
#: What makes a run long beside a real model: a student per layer of the teacher, of which one is chosen.
LONG = frozenset({"auto-layer"})
CASES = [
    pytest.param(
        method, name, marks=pytest.mark.slow if REAL & set(map(str, case["settings"].values())) or name in LONG else ()
    )
    for method in trajectories.METHODS
    for name, case in trajectories.read(method).items()
]


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    return Materials(tmp_path_factory.mktemp("pins"))


@pytest.mark.parametrize(("method", "name"), CASES)
def test_losses_and_metrics_stay(method, name, materials):
    case = trajectories.read(method)[name]
    result = trajectories.run(method, case["settings"], materials)
    elsewhere = case.get("arithmetic", trajectories.arithmetic()) != trajectories.arithmetic()
    assert len(result["log"]) == len(case["log"])
    for entry, expected in zip(result["log"], case["log"], strict=True):
        if elsewhere:  # metrics count answers, which turn over one by one
            expected = {name: value for name, value in expected.items() if not name.startswith("eval_")}
        # An entry has every number that was recorded, and may have more.
        numbers = {name: entry.get(name) for name in expected}
        assert numbers == pytest.approx(expected, **(ROUGHLY if elsewhere else NEAR))
    if not elsewhere:
        metrics = {name: result["metrics"].get(name) for name in case["metrics"]}
        assert metrics == pytest.approx(case["metrics"], **NEAR)


@pytest.mark.parametrize("method", trajectories.METHODS)
def test_every_method_is_pinned_on_a_small_model_and_on_minilm(method):
    settings = [case["settings"] for case in trajectories.read(method).values()]
    bases = {each.get("model", each.get("teacher")) for each in settings}
    assert bases & REAL
    assert bases - REAL
