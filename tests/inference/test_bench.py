"""What a model costs: numbers that can be checked, for every kind of model."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
import transformers as hf

from slimformer import models
from slimformer.errors import CheckpointError, ConfigError
from slimformer.inference.bench import PeakMemory, bench, random_inputs, time_forward
from tests import runs, zoo


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for family in zoo.FAMILIES:
        zoo.build_headed(family).save_pretrained(folder / family)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family(family, folders):
    cost = bench(folders / family, [(1, 8), (3, 16)], seconds=0)
    model = zoo.build_headed(family)
    assert cost["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert cost["bytes"] == (folders / family / "model.safetensors").stat().st_size
    assert cost["bytes"] >= 4 * cost["parameters"]
    lengths = (16, 16) if family in zoo.IMAGES else (8, 16)  # an image of 4 x 4 patches has one length only
    assert [(shape["batch"], shape["length"]) for shape in cost["shapes"]] == [(1, lengths[0]), (3, lengths[1])]
    for shape in cost["shapes"]:
        assert 0 < shape["latency_ms"]["p50"] <= shape["latency_ms"]["p95"]
        assert shape["runs"] >= 10
        assert shape["examples_per_second"] == pytest.approx(
            1e3 * shape["batch"] / shape["latency_ms"]["p50"], rel=0.05
        )
    assert {name: cost[name] for name in ("batch", "length", "latency_ms", "runs")}.items() <= cost["shapes"][0].items()
    json.dumps(cost, allow_nan=False)


def test_a_real_model():
    cost = bench("minilm", [(1, 16)], seconds=0)
    assert cost["parameters"] == 22_713_216
    assert cost["bytes"] == (Path(models.resolve("minilm")) / "model.safetensors").stat().st_size
    assert cost["threads"] == 1
    assert cost["peak_memory_bytes"] < 10 * cost["bytes"]


def test_two_thousand_tokens_take_longer_than_one():
    model = zoo.build("bert")
    assert time_forward(model, 1, 1, 0, 2).p50_ms < time_forward(model, 32, 64, 0, 2).p50_ms


def test_more_time_means_more_runs_and_never_fewer_than_ten():
    model = zoo.build("bert")
    assert time_forward(model, 1, 4, 0, 0).runs == 10
    assert time_forward(model, 1, 4, 1.5, 0).runs > 10


def test_inputs_fit_the_model(tmp_path):
    torch.manual_seed(0)
    wide = hf.ViTForImageClassification(hf.ViTConfig(**runs.SMALL, image_size=(8, 16), patch_size=4, num_channels=1))
    assert random_inputs(wide, 2, 99)["pixel_values"].shape == (2, 1, 8, 16)
    wide.save_pretrained(tmp_path)
    assert bench(tmp_path, [(1, 99), (1, 7)], seconds=0)["shapes"][0]["length"] == 8
    assert len(bench(tmp_path, [(1, 99), (1, 7)], seconds=0)["shapes"]) == 1
    choosing = zoo.build_headed("mpnet")
    assert random_inputs(choosing, 3, 5)["input_ids"].shape == (3, 2, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "longest"), [("bert", 64), ("roberta", 62), ("mpnet", 62), ("gpt2", 64)])
def test_the_longest_length_runs_and_one_more_is_refused(family, longest, folders):
    assert models.positions(models.load_config(folders / family)) == longest
    assert bench(folders / family, [(1, longest)], seconds=0)["length"] == longest
    with pytest.raises(ConfigError, match=f"`--length` is `{longest + 1}`, but the model has {longest} positions"):
        bench(folders / family, [(1, longest + 1)], seconds=0)


@pytest.mark.slow
def test_threads_are_restored_whatever_happens(folders):
    before = torch.get_num_threads()
    assert bench(folders / "bert", [(1, 4)], threads=2, seconds=0)["threads"] == 2
    assert torch.get_num_threads() == before
    with pytest.raises(CheckpointError):
        bench(folders / "nothing", [(1, 4)], threads=2)
    assert torch.get_num_threads() == before


def test_memory_that_is_taken_is_seen():
    with PeakMemory() as memory:
        block = torch.ones(64 * 2**20 // 4)
        time.sleep(0.05)
        del block
    assert 48 * 2**20 < memory.growth < 96 * 2**20


@pytest.mark.slow
def test_memory_does_not_depend_on_what_was_measured_before():
    """The weights that a forward touches are 42 MiB; importing libraries and reusing freed memory do not count."""
    found = [bench("minilm", [(1, 16)], seconds=0)["peak_memory_bytes"] / 2**20 for _ in range(3)]
    assert all(20 < each < 120 for each in found), found
