"""Elastic training: what each step trains and learns, what is kept, stored and resumed."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForSequenceClassification

import slimformer
from slimformer import elastic
from slimformer.errors import ArtifactError, ConfigError, SizeError
from slimformer.methods.elastic import ElasticConfig
from slimformer.methods.elastic.training import ElasticObjective, SizeSchedule
from slimformer.sizes import Elastic, make_elastic, name_sizes
from slimformer.sizes.table import read_sizes
from slimformer.views import attached
from tests import corpus, forking, runs, zoo
from tests.methods.test_every_kind import generated

if TYPE_CHECKING:
    from pathlib import Path

QUICK = {"max_steps": 4, "batch_size": 16, "lr": 1e-3, "threads": 1, "quiet": True, "calibration": 16}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("elastic")
    corpus.model_folder(folder / "base", dropout=0.0)
    corpus.data_folder(folder / "data")
    return folder


@pytest.fixture(scope="module")
def trained(place) -> Path:
    train(place, place / "first", max_steps=1)
    return place / "first"


def train(place, out, **settings):
    return elastic(
        task="classification",
        data=str(place / "data"),
        out=None if out is None else str(out),
        **{"model": str(place / "base"), **QUICK, **settings},
    )


def digest(out: Path) -> str:
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def test_all_sizes_are_measured_stored_and_loaded(place, tmp_path):
    result = train(place, tmp_path / "out")
    assert set(result.metrics) >= {"accuracy", "accuracy@S", "accuracy@M", "accuracy@L", "accuracy@XL", "mean accuracy"}
    assert result.metrics["accuracy"] == result.metrics["accuracy@XL"]
    loaded = slimformer.load(tmp_path / "out")
    assert loaded.manifest.model.storage == "elastic"
    assert slimformer.verify(tmp_path / "out")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert next(attached(plain), None) is None
    ids = torch.arange(12).view(2, 6)
    sizes, kept = Elastic.of(loaded.model), Elastic.of(result.model)
    with torch.no_grad():
        assert torch.equal(loaded.model(input_ids=ids).logits, plain(input_ids=ids).logits)
        for size in sizes.names:
            with sizes.at(size), kept.at(size):
                assert torch.equal(loaded.model(input_ids=ids).logits, result.model(input_ids=ids).logits)
        with sizes.at("S"):
            assert not torch.equal(loaded.model(input_ids=ids).logits, plain(input_ids=ids).logits)


def train_on(place, base, out, **settings):
    return train(place, out, **settings, model=str(base))


@pytest.mark.slow
def test_an_elastic_model_is_trained_on_with_its_sizes_and_its_order(place, tmp_path):
    """What is nested is that of the base, whatever the defaults are: small sizes keep the neurons they were given."""
    shares = {"sizes": "0.25,0.5,1", "head_sizes": "0.5,1,1", "skip": True}
    train(place, tmp_path / "first", order="magnitude", **shares)
    first = read_sizes(tmp_path / "first")
    again = train_on(place, tmp_path / "first", tmp_path / "second", lr=1e-9, max_steps=2)
    second = read_sizes(tmp_path / "second")
    assert second == first
    assert second.order is not None
    assert Elastic.of(again.model).names == ("S", "M", "XL")
    steps = slimformer.load(tmp_path / "second").manifest.steps
    assert [step.method for step in steps] == ["elastic", "elastic"]
    assert steps[1].config["sizes"] == "0.25,0.5,1"
    assert steps[1].config["order"] == "none"
    # With next to no learning rate every size answers what it answered before.
    before, ids = slimformer.load(tmp_path / "first").model, torch.arange(12).view(2, 6)
    for size in ("S", "M", "XL", "S,0"):
        with torch.no_grad(), Elastic.of(before).at(size), Elastic.of(again.model).at(size):
            expected = before(input_ids=ids).logits
            torch.testing.assert_close(again.model(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-4)
    same = train_on(place, tmp_path / "first", None, max_steps=1, **shares, order="none")
    assert Elastic.of(same.model).names == ("S", "M", "XL")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": "0.25,1"}, "`sizes` is `0.25,1`, and `.*first` is elastic with 0.125,0.25,0.5,1; leave it out"),
        ({"head_sizes": "0.5,1,1,1"}, "`head_sizes` is `0.5,1,1,1`, and `.*first` is elastic with 1,1,1,1"),
        ({"skip": True}, "`skip` is `True`, and blocks of"),
        ({"order": "magnitude"}, "`order` is `magnitude`, and the neurons of `.*first` have the order"),
    ],
)
def test_other_sizes_than_those_of_an_elastic_base_are_refused(trained, place, tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        train_on(place, trained, tmp_path / "out", **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("training", ["sampled", "joint", "per-block"])
@pytest.mark.parametrize("more", [{}, {"distil": 0}, {"head_sizes": "0.5,0.5,1,1", "depth_sizes": "0.5,1,1,1"}])
def test_every_way_of_training_learns(place, training, more):
    settings = {"max_steps": 30, "lr": 5e-3, "log_every": 5}
    result = train(place, None, training=training, **more, **settings)
    losses = [entry["loss"] for entry in result.log if "loss" in entry]
    assert losses[-1] < losses[0]
    assert ("soft_labels" in {name for entry in result.log for name in entry}) == ("distil" not in more)


def test_the_sizes_of_a_run_are_drawn_as_often_as_asked_for():
    model = zoo.build("bert")
    probabilities = (0.4, 0.3, 0.2, 0.1)
    schedule = SizeSchedule(make_elastic(model), probabilities, seed=3, uniform=400)
    drawn = [str(schedule.at(step)) for step in range(4400)]
    for part, expected in ((drawn[:400], (0.25,) * 4), (drawn[400:], probabilities)):
        counts = Counter(part)
        frequencies = [counts[name] for name in ("S", "M", "L", "XL")]
        assert chisquare(frequencies, [share * len(part) for share in expected]).pvalue > 0.001
    assert drawn[:50] != [str(SizeSchedule(Elastic.of(model), probabilities, seed=4).at(step)) for step in range(50)]


def test_once_for_all_draws_a_size_for_each_block():
    model = zoo.build("bert")
    schedule = SizeSchedule(make_elastic(model), (0.25,) * 4, seed=0, per_block=True)
    drawn = [schedule.at(step) for step in range(600)]
    assert len({str(allocation) for allocation in drawn}) > 50
    for block in range(3):
        counts = Counter(allocation.blocks[block].name for allocation in drawn)
        assert chisquare(list(counts.values())).pvalue > 0.001


def test_once_for_all_skips_blocks_where_sizes_do():
    """As often as a size leaves one out, so that what is measured there was trained; one block is always left."""
    model = zoo.build("bert")
    sizes = make_elastic(model, name_sizes([0.5, 1], depth=[0.34, 1]))
    drawn = [SizeSchedule(sizes, (0.5, 0.5), seed=0, per_block=True).at(step) for step in range(600)]
    for block in range(3):
        counts = Counter(allocation.blocks[block] for allocation in drawn)
        assert counts[None] / 600 == pytest.approx(0.33, abs=0.06)
        assert counts[sizes.sizes[1]] / 600 == pytest.approx(0.5, abs=0.06)
    assert all(any(allocation) for allocation in drawn)
    assert any(sum(size is None for size in allocation) == 2 for allocation in drawn)


def batch():
    inputs = zoo.inputs_for("bert")
    return {**inputs, "labels": torch.tensor([0, 1, 1])}


def test_a_small_size_learns_labels_and_what_the_largest_says():
    """Against a slow version: the gradient of cross-entropy with labels and with the largest size's probabilities."""
    model = zoo.build_headed("bert").eval()
    slow = copy.deepcopy(model)
    sizes = make_elastic(model)
    objective = ElasticObjective(model, distil=0.5, temperature=2.0)
    sizes.set("S")
    loss = objective(model, batch())
    loss.total.backward()
    slow_sizes = make_elastic(slow)
    with torch.no_grad():
        teacher = slow(**{k: v for k, v in batch().items() if k != "labels"}).logits
    with slow_sizes.at("S"):
        student = slow(**batch())
        soft = -((teacher / 2).softmax(-1) * (student.logits / 2).log_softmax(-1)).sum(-1).mean()
        (student.loss + 0.5 * soft).backward()
    assert float(loss.parts["soft_labels"]) == pytest.approx(float(soft), rel=1e-5)
    for (name, one), other in zip(model.named_parameters(), slow.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, msg=name)


def test_the_largest_size_learns_labels_alone():
    model = zoo.build_headed("bert").eval()
    make_elastic(model)
    loss = ElasticObjective(model, distil=0.5)(model, batch())
    assert set(loss.parts) == {"labels"}
    assert float(loss.total) == pytest.approx(float(model(**batch()).loss))


def test_joint_training_is_the_mean_over_sizes(place):
    """Each size has its own part of the batch, and one update is made of all of them."""
    model = zoo.build_headed("bert").eval()
    sizes = make_elastic(model)
    objective = ElasticObjective(model, distil=0, joint=[sizes.allocation(name) for name in sizes.names])
    losses = [float(objective(model, batch()).total) for _ in range(8)]
    expected = []
    for name in sizes.names:
        with sizes.at(name):
            expected.append(float(model(**batch()).loss))
    assert losses == pytest.approx(expected * 2)
    objective(model, batch())  # a step of one part, as the last of an epoch may be
    objective.begin(3)
    assert float(objective(model, batch()).total) == pytest.approx(expected[0])


@pytest.mark.slow
def test_each_update_of_joint_training_takes_a_batch_for_each_size(place, monkeypatch):
    """Four batches of different examples, one for each size, and one step of the optimizer."""
    steps: list[list[tuple[str, bytes]]] = []
    begin, call = ElasticObjective.begin, ElasticObjective.__call__

    def noted(self, model, inputs, totals=None):
        loss = call(self, model, inputs, totals)
        value = self.elastic.extent.value
        name = next(size for size in self.elastic.names if self.elastic._values(self.elastic.allocation(size)) == value)
        steps[-1].append((name, inputs["input_ids"].numpy().tobytes()))
        return loss

    monkeypatch.setattr(ElasticObjective, "begin", lambda self, step: (steps.append([]), begin(self, step)))
    monkeypatch.setattr(ElasticObjective, "__call__", noted)
    result = train(place, None, training="joint", batch_size=28, max_steps=10)
    assert result.steps == 10 == len(steps)  # the fourth step of 96 examples is short
    for step in steps:
        assert [name for name, _ in step] == ["S", "M", "L", "XL"][: len(step)]
        assert len({inputs for _, inputs in step}) == len(step)
    assert [len(step) for step in steps] == [4, 4, 4, 2, 4, 4, 4, 2, 4, 4]
    steps.clear()
    train(place, None, training="joint", batch_size=16, accumulation=2, max_steps=2)
    # As two processes share them: their first parts are the first two of one process.
    assert [[name for name, _ in step] for step in steps] == [["S", "S", "M", "M", "L", "L", "XL", "XL"]] * 2


@pytest.mark.slow
def test_the_best_weights_are_chosen_over_sizes(place):
    means = train(place, None, max_steps=6, eval_every=2, lr=5e-3)
    largest = train(place, None, max_steps=6, eval_every=2, lr=5e-3, choose_by="largest")
    for result, metric in ((means, "mean accuracy"), (largest, "accuracy")):
        logged = {entry["step"]: entry[f"eval_{metric}"] for entry in result.log if f"eval_{metric}" in entry}
        assert result.metrics[metric] == pytest.approx(max(logged.values()))
        assert logged[result.kept_step] == max(logged.values())


@pytest.mark.slow
@pytest.mark.parametrize("choose_by", ["mean", "largest"])
def test_the_best_weights_are_those_of_the_lowest_perplexity(tmp_path, choose_by):
    """A rate far too high makes it worse after a while, so that the best step is not the last one."""
    (tmp_path / "data").mkdir()
    data = generated("language-modelling", tmp_path / "data")
    base = runs.decoder(tmp_path / "base")
    settings = {**QUICK, "max_steps": 12, "eval_every": 2, "lr": 0.3, "schedule": "constant", "batch_size": 4}
    result = elastic(
        model=str(base), task="language-modelling", data=str(data), out=None, choose_by=choose_by, **settings
    )
    metric = "mean perplexity" if choose_by == "mean" else "perplexity"
    logged = {entry["step"]: entry[f"eval_{metric}"] for entry in result.log if f"eval_{metric}" in entry}
    assert logged[result.kept_step] == min(logged.values())
    assert max(logged.values()) > 1.01 * min(logged.values())
    assert result.metrics[metric] == pytest.approx(min(logged.values()), rel=1e-4)
    assert result.metrics["mean perplexity"] == pytest.approx(
        sum(result.metrics[f"perplexity@{size}"] for size in ("S", "M", "L", "XL")) / 4
    )


@pytest.mark.slow
def test_killed_and_resumed_with_accumulation_ends_with_the_same_bytes(place, tmp_path):
    def command(out):
        return (
            "elastic", "--model", place / "base", "--task", "classification", "--data", place / "data", "--out", out,
            "--max-steps", 12, "--batch-size", 16, "--accumulation", 4, "--save-every", 1, "--threads", 1, "--resume",
        )  # fmt: skip

    assert forking.run(*command(tmp_path / "whole")).code == 0
    out = tmp_path / "killed"
    kills = 0
    for step in range(1, 11):
        checkpoint = tmp_path / "killed.training" / f"checkpoint-{step}"
        kills += forking.killed_when(checkpoint.exists, *command(out))
    assert forking.run(*command(out)).code == 0
    assert kills >= 8
    assert digest(out) == digest(tmp_path / "whole")


SCRIPT = """
import json
import os
import sys
from slimformer import elastic
from slimformer.sizes.table import read_sizes
from slimformer.cli.output import print_json

base, data, out, more = sys.argv[1:]
loop = {"max_steps": 6, "batch_size": 16, "lr": 1e-3, "log_every": 1, "threads": 1, "quiet": True, **json.loads(more)}
loop["accumulation"] = 2 // int(os.environ.get("WORLD_SIZE", "1"))
result = elastic(model=base, task="classification", data=data, out=out, **loop)
print_json({**result.summary(), "losses": [entry["loss"] for entry in result.log if "loss" in entry]})
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"depth_sizes": "0.5,0.5,1,1"}], ids=["neurons", "blocks"])
def test_two_processes_train_the_sizes_that_one_does(place, tmp_path, more):
    def run(launcher, out):
        script = out.with_suffix(".py")
        script.write_text(SCRIPT)
        arguments = [*launcher, str(script), str(place / "base"), str(place / "data"), str(out), json.dumps(more)]
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    one = run([sys.executable], tmp_path / "one")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    two = run([*launch, "--main_process_port", "0"], tmp_path / "two")
    assert (one["processes"], two["processes"]) == (1, 2)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    # Two processes add two gradients, one process with two parts of the batch adds the same two.
    assert digest(tmp_path / "two") == digest(tmp_path / "one")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": "0.5,0.25,1"}, "shares rise"),
        ({"sizes": "a,1"}, "give numbers joined by commas"),
        ({"probabilities": "0.5,0.5"}, "give 4 numbers"),
        ({"probabilities": "0.5,0.5,0.5,0.5"}, "add up to 1"),
        ({"probabilities": "0.25,0.25,0.25,0.25", "training": "joint"}, "draws none"),
        ({"training": "joint", "batch_size": 30}, "multiple of 4"),
        ({"order": "size"}, "there is no order `size`; known: activation, magnitude, none"),
        ({"head_sizes": "0.5,1"}, "`head_sizes` has 2 shares for 4 sizes"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ElasticConfig.make(settings)


@pytest.mark.slow
def test_commands_take_a_size(place, tmp_path):
    result = train(place, tmp_path / "out")
    parameters = {}
    for size in ("S", "0.25", "L", "XL"):
        measured = runs.run("evaluate", tmp_path / "out", "--data", place / "data", "--size", size, "--json").json
        name = Elastic.of(result.model).allocation(size)
        assert measured["metrics"]["accuracy"] == pytest.approx(result.metrics[f"accuracy@{name}"])
        benched = runs.run("bench", tmp_path / "out", "--length", 8, "--seconds", 0, "--size", size, "--json").json
        parameters[size] = benched["models"][0]["parameters"]
    assert list(parameters.values()) == sorted(set(parameters.values()))
    whole = runs.run("evaluate", tmp_path / "out", "--data", place / "data", "--json").json
    assert whole["metrics"]["accuracy"] == pytest.approx(result.metrics["accuracy"])
    assert runs.run("predict", tmp_path / "out", "the film was good", "--size", "S,XL").code == 0
    runs.run("predict", tmp_path / "out", "good", "--size", "XXL").refused("there is no size `XXL`; the model has S")
    runs.run("predict", tmp_path / "out", "good", "--size", "S,0").refused("block 1 cannot be skipped")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    plain.save_pretrained(tmp_path / "plain")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "plain" / file).write_bytes((tmp_path / "out" / file).read_bytes())
    runs.run("predict", tmp_path / "plain", "good", "--size", "S").refused("`--size` is `S`", "has one size only")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record["sizes"].pop(), "shares"),
        (lambda record: record.update(sizes=[]), "has a wrong `sizes`"),
        (lambda record: record["sizes"][0].update(neurons=7), "has a wrong `sizes.0.neurons`.*seen 7"),
        (lambda record: record.update(other=1), "has the unknown key `other`"),
    ],
)
def test_a_table_of_sizes_that_cannot_be_is_refused(place, tmp_path, change, message):
    """Also where the sums are made anew."""

    train(place, tmp_path / "out", max_steps=1)
    path = tmp_path / "out" / "sizes.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(ArtifactError, match="copy the artifact again"):
        slimformer.load(tmp_path / "out")
    with pytest.raises((ArtifactError, SizeError), match=message):
        read_sizes(tmp_path / "out").nest(zoo.build("bert"))


def test_a_method_that_would_not_keep_the_sizes_says_so(place, tmp_path):
    train(place, tmp_path / "out", max_steps=1)
    flags = ["--model", tmp_path / "out", "--task", "classification", "--data", place / "data"]
    runs.run("finetune", *flags, "--out", tmp_path / "next").refused("is an elastic model, whose sizes")
    assert not (tmp_path / "next").exists()
