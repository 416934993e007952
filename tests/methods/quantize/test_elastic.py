"""`quantize` of an elastic model: all sizes are trained, measured, packed into one file and extracted from it."""

from __future__ import annotations

import hashlib

import pytest
import torch

import slimformer
from slimformer import elastic, quantize
from slimformer.errors import ConfigError
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.inference.extraction import extract
from slimformer.sizes import Elastic
from slimformer.tasks.options import TaskOptions
from slimformer.views import packed_weights
from slimformer.views.rounding import in_floats
from tests import corpus

QUICK = {"max_steps": 4, "batch_size": 16, "lr": 1e-3, "threads": 1, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elastic")
    corpus.model_folder(folder / "base", dropout=0.0)
    corpus.data_folder(folder / "data")
    train(elastic, folder, folder / "elastic", model=str(folder / "base"))
    return folder


def train(method, place, out, **settings):
    data = {"task": "classification", "data": str(place / "data"), "out": str(out)}
    return method(**{"model": str(place / "elastic"), **data, **QUICK, **settings})


def test_every_size_is_kept_in_one_packed_file(place, tmp_path):
    result = train(quantize, place, tmp_path / "out", max_steps=8)
    loaded = slimformer.load(tmp_path / "out")
    assert loaded.manifest.model.storage == "packed-elastic"
    assert slimformer.verify(tmp_path / "out")
    assert Elastic.of(loaded.model).names == ("S", "M", "L", "XL")
    assert packed_weights(loaded.model)
    options = TaskOptions(data=str(place / "data"))
    for size in ("S", "XL"):
        metrics = evaluate_on_task(tmp_path / "out", options, size=size)["metrics"]
        assert metrics["accuracy"] == result.metrics[f"accuracy@{size}"]
    extract(tmp_path / "out", tmp_path / "small", allocation="S")
    alone = slimformer.load(tmp_path / "small")
    assert alone.manifest.model.storage == "packed"
    inputs = alone.processor(["the film was good", "a dull plot"], padding=True, return_tensors="pt")
    with torch.no_grad(), in_floats(alone.model), Elastic.of(loaded.model).at("S"):
        assert torch.equal(alone.model(**inputs).logits, loaded.model(**inputs).logits)


def test_small_sizes_learn_their_own_levels(place, tmp_path):
    """What is trained are the weights behind the codes, at the size of the step; a killed run would draw the same."""
    first, second = (train(quantize, place, tmp_path / name, seed=3) for name in ("one", "two"))
    files = [(result.folder / "packed.safetensors").read_bytes() for result in (first, second)]
    assert len({hashlib.sha256(file).hexdigest() for file in files}) == 1
    assert first.metrics == second.metrics
    other = train(quantize, place, tmp_path / "three", seed=4)
    assert (other.folder / "packed.safetensors").read_bytes() != files[0]


def test_sizes_with_fewer_heads_have_no_teacher(place, tmp_path):
    train(elastic, place, tmp_path / "heads", model=str(place / "base"), head_sizes="0.5,0.5,1,1")
    with pytest.raises(ConfigError, match=r"fewer heads or blocks.*--kd none"):
        train(quantize, place, tmp_path / "out", model=str(tmp_path / "heads"))
    result = train(quantize, place, tmp_path / "out", model=str(tmp_path / "heads"), kd="none")
    assert "accuracy@S" in result.metrics


def test_an_elastic_base_without_a_head_for_the_task_is_trained_first(place, tmp_path):
    data = corpus.data_folder(tmp_path / "data")
    for file in data.iterdir():  # labels that the head does not know
        file.write_text(file.read_text().replace("\tyes", "\tja").replace("\tno", "\tnein"))
    train(quantize, tmp_path, tmp_path / "out", model=str(place / "elastic"), data=str(data))
    assert slimformer.load(tmp_path / "out.finetuned").manifest.model.storage == "elastic"
    assert slimformer.load(tmp_path / "out").manifest.model.storage == "packed-elastic"
