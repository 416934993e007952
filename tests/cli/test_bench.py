"""`slimformer bench`: JSON for machines, a table for people, one line for what cannot be."""

from __future__ import annotations

import pytest
import torch

from tests import runs

QUICK = ["--seconds", "0", "--length", "8"]


def test_json(artifact, base):
    done = runs.run("bench", artifact, base, "--batch", "1,2", "--length", "4,8", "--seconds", "0", "--json")
    assert done.err == ""
    first, second = done.json["models"]
    assert (first["model"], second["model"]) == (str(artifact), str(base))
    assert [(shape["batch"], shape["length"]) for shape in first["shapes"]] == [(1, 4), (1, 8), (2, 4), (2, 8)]
    assert first["latency_ms"] == first["shapes"][0]["latency_ms"]
    assert first["bytes"] == (artifact / "model.safetensors").stat().st_size
    assert first["parameters"] > second["parameters"]


def test_a_table(artifact):
    done = runs.run("bench", artifact, *QUICK, "--threads", "1")
    assert done.out.startswith("1 thread, cpu\n")
    for word in (str(artifact), "1 x 8", "p50 ms", "p95 ms"):
        assert word in done.out


@pytest.mark.slow
def test_threads_are_restored(artifact):
    before = torch.get_num_threads()
    assert runs.run("bench", artifact, *QUICK, "--threads", "2", "--json").json["models"][0]["threads"] == 2
    assert torch.get_num_threads() == before
    runs.run("bench", artifact, "--threads", "2", "--length", "65").refused("64 positions")
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch", "0"], "`--batch` is `0`"),
        (["--length", "8,x"], "`--length` is `8,x`"),
        (["--threads", "0"], "`--threads` is `0`"),
        (["--seconds", "-1"], "`--seconds` is `-1.0`"),
        (["--seconds", "nan"], "`--seconds` is `nan`"),
    ],
)
def test_wrong_usage(artifact, flags, message):
    runs.run("bench", artifact, *flags).refused(message, code=2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--length", "65"], "`--length` is `65`, but the model has 64 positions"),
        (["--device", "moon"], "`--device` is `moon`"),
    ],
)
def test_what_cannot_be_done(artifact, flags, message):
    runs.run("bench", artifact, *flags).refused(message)


def test_wrong_models(tmp_path):
    runs.run("bench").refused("no model given", code=2)
    runs.run("bench", "minilmm").refused("`minilmm` is no folder here")
    runs.run("bench", tmp_path / "nowhere").refused("no folder at")
    runs.run("bench", tmp_path).refused("has no config.json")


def test_a_device_that_pytorch_was_not_built_with(artifact):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    runs.run("bench", artifact, "--device", "cuda").refused("`--device` is `cuda`, which is not available here")
