"""Routes: files, runners that route row by row, the commands that make and use them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import slimformer
from slimformer.errors import ConfigError, SizeError, UsageError
from slimformer.inference.pipeline import TaskPipeline, open_pipeline
from slimformer.inference.routing import (
    ROUTED,
    Cascade,
    CascadeRunner,
    LatencyRoute,
    LatencyRunner,
    calibrate_route,
    confidences,
    evaluate_routed,
    measure_latencies,
    read_route,
    relative_costs,
    write_route,
)
from slimformer.sizes import make_elastic
from slimformer.tasks.options import TaskOptions
from tests import corpus, runs, zoo
from tests.test_old_artifacts import ARTIFACTS

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["the film was good", "dull", "a very poor plot and a great end but not the cast", "fine", "the end was awful"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("routing")
    corpus.model_folder(folder / "base", dropout=0.0)
    corpus.data_folder(folder / "data", dev=64)
    common = {"model": str(folder / "base"), "task": "classification", "data": str(folder / "data"), "quiet": True}
    loop = {"batch_size": 16, "lr": 3e-3, "threads": 1}
    slimformer.elastic(**common, **loop, max_steps=12, calibration=16, out=str(folder / "elastic"))
    return folder


@pytest.fixture(scope="module")
def margins(place) -> dict[str, list[float]]:
    """How sure each size is of each text."""
    sure = {}
    for size in ("S", "M", "L", "XL"):
        answers = open_pipeline(place / "elastic", size=size)(TEXTS)
        sure[size] = [abs(answer["scores"]["yes"] - answer["scores"]["no"]) for answer in answers]
    return sure


def route_file(folder, thresholds, sizes=("S", "M", "XL")):
    route = Cascade(sizes=list(sizes), thresholds=list(thresholds), costs=[0.4, 0.5, 1.0][: len(sizes)])
    return write_route(route, folder / "route.json", overwrite=True)


def between(values, count):
    """A threshold that so many of some values reach."""
    ordered = sorted(values, reverse=True)
    return (ordered[count - 1] + ordered[count]) / 2


def test_each_text_is_answered_by_the_first_size_that_is_sure_of_it(place, margins, tmp_path):
    thresholds = between(margins["S"], 2), between(margins["M"], 3)
    pipeline = open_pipeline(place / "elastic", route=route_file(tmp_path, thresholds))
    expected = []
    for number in range(len(TEXTS)):
        size = "S" if margins["S"][number] >= thresholds[0] else "M" if margins["M"][number] >= thresholds[1] else "XL"
        expected.append(size)
    assert set(expected) == {"S", "M", "XL"}
    answers = pipeline(TEXTS)
    for text, size, answer in zip(TEXTS, expected, answers, strict=True):
        alone = open_pipeline(place / "elastic", size=size)([text])[0]
        assert answer["label"] == alone["label"]
        assert answer["probability"] == pytest.approx(alone["probability"], abs=1e-6)


def test_neither_batch_mates_nor_threads_change_an_answer(place, margins, tmp_path):
    route = route_file(tmp_path, (between(margins["S"], 2), between(margins["M"], 3)))
    pipeline = open_pipeline(place / "elastic", route=route)
    alone = [pipeline([text])[0]["probability"] for text in TEXTS]
    small = TaskPipeline(pipeline.codec, pipeline.runner, batch_size=2)
    assert [answer["probability"] for answer in pipeline(TEXTS)] == pytest.approx(alone, abs=1e-6)
    assert [answer["probability"] for answer in small(TEXTS[::-1])] == pytest.approx(alone[::-1], abs=1e-6)
    expected = [repr(pipeline(TEXTS)), repr(small(TEXTS))]
    with ThreadPoolExecutor(6) as pool:
        given = list(pool.map(lambda number: repr((pipeline, small)[number % 2](TEXTS)), range(24)))
    assert given == expected * 12


def test_confidence_is_the_best_probability_or_its_margin():
    logits = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.05, 0.85]]))
    assert confidences(logits, "probability") == pytest.approx([0.5, 0.85])
    assert confidences(logits, "margin") == pytest.approx([0.2, 0.75])


def counting(number, calls):
    def run(batch):
        calls.append((number, batch["input_ids"][:, 0].tolist()))
        best = np.where(batch["input_ids"][:, 0] > 10 * (number + 1), 0.0, 9.0)
        return {"logits": np.stack([best, np.zeros(len(best))], axis=1)}

    return run


def test_a_cascade_asks_a_larger_size_for_those_rows_alone_that_need_it():
    calls = []
    route = Cascade(sizes=["S", "M", "XL"], thresholds=[0.5, 0.5], costs=[0.2, 0.5, 1.0])
    runner = CascadeRunner(route, [counting(number, calls) for number in range(3)])
    outputs = runner({"input_ids": np.array([[25], [5], [15], [35]])})
    assert calls == [(0, [25, 5, 15, 35]), (1, [25, 15, 35]), (2, [25, 35])]
    assert outputs[ROUTED].tolist() == [2, 0, 1, 2]
    assert route.spent(outputs[ROUTED]) == pytest.approx([1.7, 0.2, 0.7, 1.7])


def test_the_largest_size_that_is_fast_enough_for_a_length_answers():
    route = LatencyRoute(budget_ms=10, sizes=["S", "M", "XL"], lengths=[8, 16], latency_ms=[[2, 12], [4, 15], [9, 30]])
    assert [route.choose(length) for length in (3, 8, 9, 40)] == [2, 2, 0, 0]
    assert route.choose(3, budget_ms=5) == 1
    calls = []
    mask = np.zeros((3, 20), dtype=int)
    mask[0, :8], mask[1, :9], mask[2, :2] = 1, 1, 1
    runner = LatencyRunner(route, [counting(number, calls) for number in range(3)])
    outputs = runner({"input_ids": np.array([[1], [2], [3]]), "attention_mask": mask})
    assert outputs[ROUTED].tolist() == [2, 0, 2]
    assert calls == [(0, [2]), (2, [1, 3])]


def test_latencies_of_all_sizes_are_measured():
    model = zoo.build("llama")
    make_elastic(model)
    route = measure_latencies(model, 1.0, [8, 4, 8], seconds=0.0)
    assert (route.lengths, route.sizes) == ([4, 8], ["S", "M", "L", "XL"])
    assert all(value > 0 for row in route.latency_ms for value in row)
    images = zoo.build("vit")
    make_elastic(images)
    assert measure_latencies(images, 1.0, [4], seconds=0.0).lengths == [16]


def test_costs_are_those_of_the_flop_counter():
    from torch.utils.flop_counter import FlopCounterMode

    model = zoo.build_headed("bert")
    model.set_attn_implementation("eager")  # whose products torch counts on every machine
    elastic = make_elastic(model)
    counted = []
    for size in elastic.names:
        with elastic.at(size), FlopCounterMode(display=False) as counter:
            model(input_ids=torch.ones(1, 12, dtype=torch.long))
        counted.append(counter.get_total_flops())
    assert relative_costs(model, 12) == pytest.approx([each / counted[-1] for each in counted], rel=0.01)


@pytest.mark.slow
def test_a_route_is_calibrated_kept_and_measured(place, tmp_path):
    options = TaskOptions.make({"data": str(place / "data")})
    route, measured = calibrate_route(place / "elastic", options, compute=0.8)
    assert measured["compute"] <= 0.8
    assert set(measured["sizes"]) == {"S", "M", "L", "XL"}
    path = write_route(route, tmp_path / "new" / "route.json")
    assert read_route(path) == route
    result = evaluate_routed(place / "elastic", options, route=path)
    assert result["metrics"]["accuracy"] == pytest.approx(measured["accuracy"])
    assert result["route"]["compute"] == pytest.approx(measured["compute"])
    assert sum(result["route"]["shares"].values()) == pytest.approx(1)
    low, high = result["route"]["interval"]
    assert low <= result["route"]["difference"] <= high


@pytest.mark.slow
def test_the_commands(place, tmp_path):
    path = tmp_path / "route.json"
    data = ["--data", place / "data"]
    made = runs.run("route", place / "elastic", *data, "--compute", 0.7, "--out", path)
    assert made.code == 0, made.err
    assert "cascade" in made.out
    assert json.loads(path.read_text())["by"] == "confidence"
    measured = runs.run("evaluate", place / "elastic", *data, "--route", path)
    assert "answered by" in measured.out
    assert "random routing" in measured.out
    assert runs.run("evaluate", place / "elastic", *data, "--route", path, "--json").json["route"]["compute"] <= 0.7
    asked = runs.run("predict", place / "elastic", *TEXTS, "--route", path)
    assert asked.out.count("\n") == len(TEXTS)
    runs.run("route", place / "elastic", *data, "--compute", 0.7, "--out", path).refused("there already")
    fast = tmp_path / "fast.json"
    made = runs.run("route", place / "elastic", "--max-latency", 500, "--lengths", "8", "--out", fast, "--json").json
    assert made["by"] == "latency"
    result = runs.run("evaluate", place / "elastic", *data, "--route", fast, "--json").json
    assert result["route"]["shares"] == {"S": 0, "M": 0, "L": 0, "XL": 1}


def test_wrong_usage_is_refused_before_anything_is_opened(tmp_path):
    out = tmp_path / "route.json"
    runs.run("route", "nowhere", "--out", out).refused("nothing is given", code=2)
    runs.run("route", "nowhere", "--out", out, "--compute", 0.5, "--max-latency", 3).refused("`--max-latency`", code=2)
    runs.run("route", "nowhere", "--out", out, "--compute", 1.5).refused("`--compute` is `1.5`", code=2)
    runs.run("route", "nowhere", "--out", out, "--max-latency", "inf").refused("`--max-latency`", code=2)
    runs.run("route", "nowhere", "--out", out, "--compute", 0.5, "--confidence", "x").refused("`x`", code=2)
    runs.run("predict", "nowhere", "a", "--route", out, "--size", "S").refused("give one of them", code=2)
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is no route"),
        ("{}", "is no route: it does not say `by` what it chooses; make one"),
        ('{"by": "confidence", "sizes": ["S", "XL"], "thresholds": [], "costs": [1, 1]}', "a threshold for each"),
        ('{"by": "latency", "sizes": ["S"], "lengths": [8, 4], "latency_ms": [[1, 2]], "budget_ms": 1}', "rise"),
        ('{"by": "latency", "sizes": ["S"], "lengths": [8], "latency_ms": [[1, 2]], "budget_ms": 1}', "latency for"),
        ('{"by": "latency", "sizes": ["S"], "lengths": [8], "latency_ms": [[1]], "budget_ms": NaN}', "is no route"),
        ('{"by": "latency", "sizes": ["S"], "lengths": [-8], "latency_ms": [[1]], "budget_ms": 1}', "is no route"),
        ('{"by": "latency", "sizes": ["S"], "lengths": [8], "latency_ms": [[-1]], "budget_ms": 1}', "is no route"),
        ('{"by": "confidence", "sizes": ["S", "S"], "thresholds": [2], "costs": [1, 1]}', "named twice"),
        (json.dumps({"by": "confidence", "sizes": [f"S{n}" for n in range(65)]}), "at most 64"),
    ],
)
def test_files_that_are_no_routes_are_refused(content, words, tmp_path):
    path = tmp_path / "route.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_route(path)
    with pytest.raises(ConfigError, match="not replaced"):
        write_route(Cascade(sizes=["S"], thresholds=[], costs=[1]), path, overwrite=True)
    assert path.read_text() == content


def test_routes_that_do_not_fit_the_model_are_refused(place, tmp_path):
    path = route_file(tmp_path, (0.5, 0.5))
    with pytest.raises(SizeError, match="one size only"):
        open_pipeline(ARTIFACTS / "classifier", route=path)
    with pytest.raises(UsageError, match="give one of them"):
        open_pipeline(place / "elastic", route=path, size="S")
    with pytest.raises(ConfigError, match="no route at"):
        open_pipeline(place / "elastic", route=tmp_path / "none.json")
    with pytest.raises(ConfigError, match="chooses no class"):
        open_pipeline(place / "elastic", route=path, task="retrieval")
    with pytest.raises(SizeError, match="no size `XXL`"):
        open_pipeline(place / "elastic", route=route_file(tmp_path, (0.5,), sizes=("S", "XXL")))
    other = Cascade(sizes=["S"], thresholds=[], costs=[1], fingerprint="0" * 64)
    with pytest.raises(SizeError, match="other weights"):
        open_pipeline(place / "elastic", route=write_route(other, tmp_path / "other.json"))


def test_a_size_of_any_kind_can_be_chosen_by_latency(place, tmp_path):
    """Vectors too: what a route by latency needs is a length alone."""
    lengths = {"budget_ms": 3.0, "sizes": ["S", "XL"], "lengths": [5, 64], "latency_ms": [[1, 1], [2, 4]]}
    path = write_route(LatencyRoute(**lengths), tmp_path / "route.json")
    answers = open_pipeline(place / "elastic", route=path, task="retrieval")(TEXTS)
    for text, answer in zip(TEXTS, answers, strict=True):
        size = "XL" if len(text.split()) + 2 <= 5 else "S"
        alone = open_pipeline(place / "elastic", size=size, task="retrieval")([text])[0]
        assert answer["embedding"] == pytest.approx(alone["embedding"], abs=1e-5)
