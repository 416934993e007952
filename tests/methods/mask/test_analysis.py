"""Every analysis on small runs: the data are what they claim to be, and there is a plot."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import slimformer
from slimformer import models
from slimformer.artifact import MaskFile
from slimformer.errors import ArtifactError, ConfigError
from slimformer.methods.mask import MaskConfig
from slimformer.methods.mask.analysis import (
    bezier_path,
    cls_map,
    connectivity,
    cross_data,
    layer_sweep,
    linear_paths,
    mask_dissimilarity,
    memory_report,
    sparsity_sweep,
)
from slimformer.methods.mask.analysis.connectivity import Curve, bezier
from slimformer.methods.mask.analysis.generalisation import majority_score
from slimformer.methods.mask.measuring import Measure
from slimformer.tasks.options import TaskOptions
from slimformer.train import TrainingOptions
from tests import corpus, runs

QUICK = {"batch_size": 8, "lr": 0.05, "blocks": "0-", "quiet": True, "task": "classification"}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A base, data, masks of two seeds and of other steps, and a fine-tuned model."""
    folder = tmp_path_factory.mktemp("shelf")
    common = {**QUICK, "model": corpus.model_folder(folder / "base"), "data": corpus.data_folder(folder / "data")}
    slimformer.mask(**common, max_steps=6, seed=0, out=folder / "one")
    slimformer.mask(**common, max_steps=2, seed=0, out=folder / "two")
    slimformer.mask(**common, max_steps=6, seed=1, out=folder / "three")
    del common["blocks"]
    slimformer.finetune(**{**common, "lr": 1e-3}, max_steps=4, out=folder / "tuned")
    return folder


def check(finding):
    json.dumps(finding.data, allow_nan=False)
    assert finding.figure.svg.startswith("<svg")
    assert finding.figure.title
    return finding.data


def settings(shelf, **more):
    return MaskConfig.make({**{k: v for k, v in QUICK.items() if k != "quiet"}, "model": shelf / "base", **more})


@pytest.mark.slow
def test_initial_sparsity(shelf):
    config = settings(shelf, data=shelf / "data", max_steps=2)
    data = check(sparsity_sweep(config, (0.05, 0.9), seeds=(0, 1)))
    assert [run["initial_sparsity"] for run in data["runs"]] == [0.05, 0.9]
    alone = slimformer.mask(config, initial_sparsity=0.9, seed=1, quiet=True)
    assert data["runs"][1]["values"][1] == alone.metrics["accuracy"]
    assert data["runs"][1]["mean"] == pytest.approx(np.mean(data["runs"][1]["values"]))


@pytest.mark.slow
def test_which_blocks(shelf):
    data = check(layer_sweep(settings(shelf, data=shelf / "data", max_steps=2)))
    assert [(run["direction"], run["blocks"]) for run in data["runs"]] == [
        ("top_down", 1),
        ("top_down", 2),
        ("bottom_up", 1),
        ("bottom_up", 2),
    ]
    # All blocks are all blocks, from whichever side they are counted.
    assert data["runs"][1]["values"] == data["runs"][3]["values"]


def test_dissimilarity(shelf):
    masks = {"one": shelf / "one", "again": shelf / "one", "two": shelf / "two", "three": shelf / "three"}
    found = check(mask_dissimilarity(masks))["dissimilarity"]
    assert found["one / again"] == {0: 0.0, 1: 0.0}
    # From one start two masks cannot be further apart than what both changed; from two starts they are.
    assert all(0 < value <= 1 for value in found["one / two"].values())
    assert all(value > found["one / two"][block] for block, value in found["one / three"].items())
    with pytest.raises(ArtifactError, match="1 masks were given"):
        mask_dissimilarity({"one": shelf / "one"})


@pytest.mark.slow
def test_masks_that_training_did_not_change_are_refused(shelf, tmp_path):
    still = {**QUICK, "model": shelf / "base", "data": shelf / "data", "lr": 1e-12, "max_steps": 1}
    masks = {str(seed): tmp_path / str(seed) for seed in (0, 1)}
    for seed, out in masks.items():
        slimformer.mask(**still, seed=int(seed), out=out)
    with pytest.raises(ArtifactError, match="training changed no bit of the masks 0 / 1"):
        mask_dissimilarity(masks)


def test_dissimilarity_is_the_formula(shelf):
    """Written out for one block from the files alone, with the start drawn as training draws it."""
    from slimformer.views import uniform_scores

    one, two = (MaskFile.read(shelf / name / "mask.safetensors") for name in ("one", "two"))
    roles = [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "intermediate.dense",
        None,
        "output.dense",
    ]
    apart = moved = 0
    for number, role in enumerate([role for role in roles if role]):
        name = f"bert.encoder.layer.1.{role}.weight"
        generator = torch.Generator().manual_seed((0 << 16) + 16 + number)
        start = uniform_scores(one.shapes[name], 0.05, generator=generator) > 0.01
        apart += int((one.mask(name) != two.mask(name)).sum())
        moved += sum(int((file.mask(name).bool() != start).sum()) for file in (one, two))
    found = mask_dissimilarity({"one": shelf / "one", "two": shelf / "two"}).data["dissimilarity"]
    assert found["one / two"][1] == pytest.approx(apart / moved)


def test_each_matrix_is_compared_alone(shelf):
    """W_O from the files alone; over all matrices together the counts add up to those of each."""
    from slimformer.views import uniform_scores

    one, two = (MaskFile.read(shelf / name / "mask.safetensors") for name in ("one", "two"))
    masks = {"one": shelf / "one", "two": shelf / "two"}
    for block in (0, 1):
        name = f"bert.encoder.layer.{block}.attention.output.dense.weight"
        generator = torch.Generator().manual_seed(block * 16 + 3)
        start = uniform_scores(one.shapes[name], 0.05, generator=generator) > 0.01
        apart = int((one.mask(name) != two.mask(name)).sum())
        moved = sum(int((file.mask(name).bool() != start).sum()) for file in (one, two))
        alone = check(mask_dissimilarity(masks, matrices="o"))
        assert alone["matrices"] == ["o"]
        assert alone["dissimilarity"]["one / two"][block] == pytest.approx(apart / moved)
        whole = mask_dissimilarity(masks).data
        assert whole["by_matrix"]["one / two"]["o"][block] == alone["dissimilarity"]["one / two"][block]
        assert whole["by_matrix"]["one / two"].keys() == {"q", "k", "v", "o", "ffn-in", "ffn-out"}
    with pytest.raises(ConfigError, match="blocks have no `pooler`; known: q, k, v, o"):
        mask_dissimilarity(masks, matrices="o,pooler")


@pytest.mark.slow
def test_matrices_that_are_fused_are_compared_apart(tmp_path):
    """GPT-2 keeps queries, keys and values in one weight, stored as [in, out]."""
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 5 + len(corpus.WORDS), "n_positions": 64}
    transformers.GPT2Model(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path / "base")
    corpus.tokenizer().save_pretrained(tmp_path / "base")
    data = corpus.data_folder(tmp_path / "data", train=16, dev=8)
    for seed in (0, 1):
        settings = {**QUICK, "model": tmp_path / "base", "data": data, "matrices": "k,o", "max_steps": 2}
        slimformer.mask(**settings, seed=seed, out=tmp_path / str(seed))
    masks = {str(seed): tmp_path / str(seed) for seed in (0, 1)}
    alone = mask_dissimilarity(masks).data["by_matrix"]["0 / 1"]
    assert {name for name, blocks in alone.items() if blocks} == {"k", "o"}
    bits = [
        MaskFile.read(folder / "mask.safetensors").mask("transformer.h.1.attn.c_attn.weight")
        for folder in masks.values()
    ]
    apart = (bits[0] != bits[1])[:, 32:64].sum()  # [in, q | k | v]
    assert apart == (bits[0] != bits[1]).sum() > 0


def test_where_texts_lie(shelf):
    models = {"base": shelf / "base", "tuned": shelf / "tuned", "mask": shelf / "one"}
    points = check(cls_map(models, shelf / "data", limit=24))["points"]
    assert list(points) == ["base", "tuned", "mask"]
    assert set(points["mask"]) == {"no", "yes"}
    assert sum(len(each) for each in points["mask"].values()) == 24


def test_on_other_data(shelf, tmp_path):
    other = corpus.data_folder(tmp_path / "other", dev=16)
    data = {"classification": other}
    found = check(cross_data({"mask": shelf / "one", "tuned": shelf / "tuned"}, data))["scores"]
    assert found["mask"].keys() == {"classification"}
    for name, folder in (("mask", "one"), ("tuned", "tuned")):
        loaded = slimformer.load(shelf / folder)
        by_hand = runs.accuracy_by_hand(loaded.model, loaded.processor, other / "dev.tsv")
        assert found[name]["classification"] == pytest.approx(100 * by_hand)
    rows = [line.rsplit("\t", 1)[1] for line in (other / "dev.tsv").read_text().splitlines()[1:]]
    most = max(rows.count("yes"), rows.count("no"))
    assert most < len(rows)
    assert found["majority"] == {"classification": pytest.approx(100 * most / len(rows))}


def test_the_majority_is_scored_by_the_metric_of_the_task(shelf):
    """Matthews' correlation of an answer that is always the same is 0, whatever the labels."""
    measure = Measure.of(shelf / "one", TaskOptions.make({"data": shelf / "data"}))
    assert majority_score(measure) > 0.5
    correlated = replace(
        measure, data=replace(measure.data, preset=replace(measure.data.preset, metrics=("matthews",)))
    )
    assert majority_score(correlated) == 0


def test_straight_lines(shelf):
    ends = {"tuned to mask": (shelf / "tuned", shelf / "one"), "base to mask": (shelf / "base", shelf / "one")}
    data = check(linear_paths(ends, shelf / "data", points=3))
    assert data["places"] == [0, 0.5, 1]
    of = {
        name: slimformer.artifact.read_manifest(shelf / name).metrics["classification/dev"] for name in ("tuned", "one")
    }
    line = data["values"]["tuned to mask"]
    assert (line[0], line[-1]) == (of["tuned"]["accuracy"], of["one"]["accuracy"])
    assert data["values"]["base to mask"][-1] == of["one"]["accuracy"]


def test_a_trained_curve(shelf):
    training = TrainingOptions(max_steps=4, lr=1e-3, batch_size=8)
    data = check(bezier_path(shelf / "tuned", shelf / "one", shelf / "data", training=training, points=5))
    assert (data["curve"][0], data["curve"][-1]) == (data["line"][0], data["line"][-1])
    assert len(data["curve"]) == len(data["t"]) == 5


@pytest.mark.parametrize("bends", [1, 3])
def test_a_curve_is_that_of_de_casteljau(bends):
    """Points of a Bézier curve by repeated interpolation, the slow way, and the straight line it starts as."""
    torch.manual_seed(0)
    controls = [torch.randn(3, 4, dtype=torch.float64) for _ in range(bends + 2)]
    for place in (0.0, 0.3, 0.5, 1.0):
        level = controls
        while len(level) > 1:
            level = [torch.lerp(one, other, place) for one, other in itertools.pairwise(level)]
        assert torch.allclose(bezier(controls, place), level[0])
    model = torch.nn.Linear(2, 2).double()
    start, end = ({name: torch.randn_like(each) for name, each in model.named_parameters()} for _ in range(2))
    curve = Curve(model, start, end, bends)
    for place in (0.0, 0.3, 1.0):
        line = {name: torch.lerp(start[name], end[name], place) for name in start}
        assert all(torch.allclose(each, line[name]) for name, each in curve.weights(place).items())


def test_all_bends_of_a_curve_are_trained(shelf, monkeypatch):
    before = {}
    training = connectivity.train

    def watched(curve, *arguments, **named):
        before.update({name: each.detach().clone() for name, each in curve.named_parameters()})
        training(curve, *arguments, **named)
        moved = {name.split(".")[1] for name, each in curve.named_parameters() if not torch.equal(each, before[name])}
        assert moved == {"0", "1", "2"}
        assert all(each.isfinite().all() for each in curve.parameters())

    monkeypatch.setattr(connectivity, "train", watched)
    options = TrainingOptions(max_steps=3, lr=1e-3, batch_size=8)
    data = bezier_path(shelf / "tuned", shelf / "one", shelf / "data", training=options, points=3).data
    assert data["bends"] == 3
    assert before
    with pytest.raises(ConfigError, match="`bends` is `0`; give 1 or more"):
        bezier_path(shelf / "tuned", shelf / "one", shelf / "data", bends=0)


def test_a_curve_that_is_not_trained_is_the_line(shelf):
    still = TrainingOptions(max_steps=1, lr=1e-12, weight_decay=0.0, batch_size=8)
    data = bezier_path(shelf / "tuned", shelf / "one", shelf / "data", training=still, points=4).data
    assert data["curve"] == data["line"]


def test_ends_of_other_shapes_are_refused(shelf, tmp_path):
    settings = {**QUICK, "model": shelf / "base", "data": shelf / "data", "structured": "neurons", "sparsity": 0.5}
    slimformer.mask(**settings, max_steps=2, out=tmp_path / "narrow")
    with pytest.raises(ArtifactError, match="of other shapes; give two models of one task and size"):
        linear_paths({"line": (shelf / "one", tmp_path / "narrow")}, shelf / "data")
    with pytest.raises(ArtifactError, match="removes neurons or heads"):
        mask_dissimilarity({"one": shelf / "one", "narrow": tmp_path / "narrow"})


def test_memory_of_many_tasks(shelf):
    data = check(memory_report("minilm", tasks=(1, 20)))
    file = 384 * 384 * 4 * 4 + 384 * 1536 * 2 * 4 + 384 * 384
    head = 4 * 2 * 385
    assert data["masked_weights"] == file
    assert data["bytes_per_task"]["mask"] == file // 8 + head
    assert data["bytes_per_task"]["LoRA"] == 6 * 2 * 4 * 8 * (384 + 384) + head
    assert data["bytes"]["fine-tuning"]["20"] == 20 * data["bytes_per_task"]["fine-tuning"]
    # Fig. 3a: a bit is a parameter too.
    loaded = sum(each.numel() for each in transformers.AutoModel.from_pretrained(models.resolve("minilm")).parameters())
    assert data["parameters_per_task"] == {
        "fine-tuning": loaded + 2 * 385,
        "mask": file + 2 * 385,
        "LoRA": 6 * 2 * 8 * (384 + 384) + 2 * 385,
    }
    assert data["parameters"]["fine-tuning"]["20"] == 20 * (loaded + 2 * 385)
    assert data["parameters"]["mask"]["20"] == loaded + 20 * (file + 2 * 385)
    base = data["bytes_per_task"]["fine-tuning"] - head
    assert data["bytes"]["mask"]["20"] == base + 20 * data["bytes_per_task"]["mask"]
