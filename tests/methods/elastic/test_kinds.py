"""Elastic training of every kind of task: all sizes are trained, taught by the largest, measured, stored and loaded."""

from __future__ import annotations

import itertools

import pytest
import torch

import slimformer
from slimformer import elastic
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.registry import KINDS
from slimformer.sizes import Elastic
from slimformer.tasks.options import TaskOptions
from tests import corpus, runs
from tests.methods.test_every_kind import generated

QUICK = {"max_steps": 5, "batch_size": 6, "lr": 1e-3, "threads": 1, "quiet": True, "calibration": 6, "log_every": 1}
#: Kinds whose answers are embeddings, with the name of their own loss.
EMBEDDING = {"retrieval": "contrastive", "similarity": "ranked_pairs", "image-retrieval": "contrastive"}


def base_for(kind, folder):
    if kind.startswith("image"):
        return runs.viewer(folder)
    return runs.decoder(folder) if kind == "last-word" else corpus.model_folder(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_size_of_every_kind(kind, tmp_path):
    (tmp_path / "data").mkdir()
    data = generated(kind, tmp_path / "data")
    base = base_for(kind, tmp_path / "base")
    nested = {"output_sizes": "0.25,0.25,0.5,1"} if kind in EMBEDDING else {}
    result = elastic(model=str(base), task=kind, data=str(data), out=str(tmp_path / "out"), **QUICK, **nested)
    assert "soft_labels" in names(result.log) or "pooled" in names(result.log)
    assert EMBEDDING.get(kind, "labels") in names(result.log)
    assert slimformer.verify(tmp_path / "out")
    primary = result.primary
    for size in ("S", "M", "L", "XL"):
        options = TaskOptions.make({"data": str(data)})
        measured = evaluate_on_task(tmp_path / "out", options, size=size)["metrics"]
        assert measured[primary] == pytest.approx(result.metrics[f"{primary}@{size}"], rel=1e-5)
    before, after = (slimformer.load(tmp_path / "out").model, result.model)
    assert Elastic.of(before).names == Elastic.of(after).names == ("S", "M", "L", "XL")


def names(log):
    return {name for entry in log for name in entry}


def opinions(kind, folder):
    """Texts with a good or a bad word, by themselves or in pairs that agree or do not."""
    corpus.data_folder(folder)
    for split in ("train", "dev") if kind == "similarity" else ():
        rows = [line.split("\t") for line in (folder / f"{split}.tsv").read_text().splitlines()[1:]]
        pairs = [f"{a}\t{b}\t{5 * (one == two)}" for (a, one), (b, two) in itertools.pairwise(rows)]
        (folder / f"{split}.tsv").write_text("\n".join(["text1\ttext2\tscore", *pairs]) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["retrieval", "similarity"])
def test_embeddings_learn_at_every_size(kind, tmp_path):
    data, base = opinions(kind, tmp_path / "data"), corpus.model_folder(tmp_path / "base", dropout=0.0)
    settings = {**QUICK, "max_steps": 60, "batch_size": 16, "lr": 3e-3, "output_sizes": "0.25,0.5,0.5,1"}
    untrained = elastic(
        model=str(base), task=kind, data=str(data), out=None, **{**settings, "max_steps": 1, "lr": 1e-12}
    ).metrics
    trained = elastic(model=str(base), task=kind, data=str(data), out=None, **settings).metrics
    names = [name for name in trained if "@" in name]
    assert len(names) == 4
    for name in names:
        assert trained[name] > untrained[name] + 0.1, name


@pytest.mark.slow
def test_the_embedding_of_a_size_is_the_beginning_of_a_vector(tmp_path):
    """Of predict, of the model itself, and of the model that is taken out and loaded again."""
    (tmp_path / "data").mkdir()
    data = generated("retrieval", tmp_path / "data")
    base = corpus.model_folder(tmp_path / "base", dropout=0.0)
    out = tmp_path / "out"
    shares = {"sizes": "0.5,1", "output_sizes": "0.25,1"}
    elastic(model=str(base), task="retrieval", data=str(data), out=str(out), **{**QUICK, "max_steps": 1}, **shares)
    vectors = {
        size: runs.run("predict", out, "the film was good", "--size", size, "--json").json["embedding"]
        for size in ("S", "XL")
    }
    assert {size: len(vector) for size, vector in vectors.items()} == {"S": 8, "XL": 32}
    assert runs.run("extract", out, "--allocation", "S", "--out", tmp_path / "small").code == 0
    taken_out = runs.run("predict", tmp_path / "small", "the film was good", "--json").json["embedding"]
    assert taken_out == pytest.approx(vectors["S"], abs=1e-6)
    model = slimformer.load(out).model
    ids = torch.arange(5, 11)[None]
    with torch.no_grad():
        with Elastic.of(model).at("S"):
            small = model(input_ids=ids).last_hidden_state
            as_tuple = model(input_ids=ids, return_dict=False)[0]
        assert small.shape == (1, 6, 8)
        assert torch.equal(small, as_tuple)
        assert model(input_ids=ids).last_hidden_state.shape == (1, 6, 32)
    plain = runs.run("predict", base, "the film was good", "--task", "retrieval", "--json").json
    assert len(plain["embedding"]) == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "classification", "output_sizes": "0.25,0.25,0.5,1"}, "`output_sizes` is `0.25,0.25,0.5,1`, shares"),
        ({"task": "retrieval", "output_sizes": "0.5,1"}, "`output_sizes` has 2 shares for 4 sizes"),
    ],
)
def test_output_sizes_that_cannot_be_are_refused(settings, message, tmp_path):
    base = corpus.model_folder(tmp_path / "base")
    with pytest.raises(slimformer.errors.ConfigError, match=message):
        elastic(model=str(base), data=str(tmp_path / "nowhere"), out=str(tmp_path / "out"), **settings)
    assert not (tmp_path / "out").exists()
