"""`--lr-grid`: every rate is a run of its own, and the best one on dev is kept."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers as hf

import slimformer
from slimformer import models
from slimformer.artifact import read_manifest, republish
from slimformer.errors import ArtifactError, ConfigError, TrainingError
from slimformer.methods.method import RunOptions
from slimformer.methods.run import run
from slimformer.registry import METHODS
from tests import corpus, runs
from tests.parameters import slow

QUICK = {"task": "classification", "max_steps": 24, "batch_size": 16, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    corpus.model_folder(folder / "base")
    corpus.data_folder(folder / "data")
    return folder


@pytest.fixture(scope="module")
def common(place):
    return {**QUICK, "model": place / "base", "data": place / "data"}


@pytest.fixture(scope="module")
def grid(place, common):
    """A grid whose best rate lies inside."""
    return slimformer.finetune(**common, lr_grid="1e-9,1e-2,5", out=place / "grid")


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_best_of_the_rates_each_run_alone_is_kept(place, common, grid):
    alone = {rate: slimformer.finetune(**common, lr=rate) for rate in (1e-9, 1e-2, 5.0)}
    scores = {f"{rate:g}": result.metrics["accuracy"] for rate, result in alone.items()}
    assert scores["0.01"] > max(scores["1e-09"], scores["5"])  # else the grid would have been widened
    assert grid.rates == scores
    assert same(weights(alone[1e-2].model), weights(slimformer.load(place / "grid").model))
    assert same(weights(alone[1e-2].model), weights(grid.model))
    assert grid.metrics == alone[1e-2].metrics


def test_the_record_holds_every_rate_and_nothing_else_stays(place, grid):
    step = read_manifest(place / "grid").steps[-1]
    assert step.config["lr"] == 1e-2
    assert step.config["lr_grid"] == [1e-9, 1e-2, 5.0]
    assert step.config["lr_scores"] == grid.rates == grid.summary()["rates"]
    assert "lr_scores" in (place / "grid" / "README.md").read_text()
    assert len([line for line in grid.lines() if "tried learning rate" in line]) == 3
    assert not (place / "grid.training").exists()
    assert slimformer.verify(place / "grid").max_difference == 0


def test_a_finished_grid_is_not_run_again(place, common, grid, monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_, **__: pytest.fail("trained again"))
    again = slimformer.finetune(**common, lr_grid="1e-9,1e-2,5", out=place / "grid", resume=True)
    assert (again.rates, again.metrics) == (grid.rates, grid.metrics)


def test_other_rates_than_those_of_the_result_are_another_run(place, common, grid, monkeypatch):
    """Which is told from the record alone: nothing is loaded, nor could it be."""
    monkeypatch.setattr(hf.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ArtifactError, match="exists; choose another `--out`"):
        slimformer.finetune(**common, lr_grid="1e-9,1e-2", out=place / "grid", resume=True)


@pytest.mark.parametrize("widenings", slow([0, 2], only=[2]))
def test_a_grid_whose_best_is_on_the_border_is_widened_so_often_and_no_oftener(common, widenings):
    result = slimformer.finetune(**{**common, "max_steps": 2}, lr_grid="1e-9,1e-8", lr_widenings=widenings)
    assert len(result.rates) <= 2 + widenings
    scores = {float(rate): score for rate, score in result.rates.items()}
    top = max(scores.values())
    assert result.metrics["accuracy"] == top
    inside = sorted(scores)[1:-1]
    assert len(scores) == 2 + widenings or any(scores[rate] == top for rate in inside)


@pytest.mark.slow
def test_a_rate_at_which_the_loss_becomes_no_number_is_the_worst_one(common):
    result = slimformer.finetune(**{**common, "max_steps": 4}, lr_grid="3e-3,1e12", clip=0.0, lr_widenings=0)
    assert result.rates["1e+12"] is None
    assert result.metrics["accuracy"] == result.rates["0.003"]
    with pytest.raises(TrainingError, match=r"at every learning rate from 1e\+11 to 1e\+12; give lower ones"):
        slimformer.finetune(**{**common, "max_steps": 4}, lr_grid="1e11,1e12", clip=0.0)


@pytest.mark.slow
def test_interrupted_between_rates_it_goes_on_with_the_first_that_is_missing(place, common, grid, monkeypatch):
    out, steps = place / "interrupted", []
    step = torch.optim.AdamW.step

    def counted(*arguments, **named):
        steps.append(1)
        if len(steps) == 30:  # in the middle of the second rate
            raise KeyboardInterrupt
        return step(*arguments, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", counted)
    settings = {**common, "lr_grid": "1e-9,1e-2,5", "out": out}
    with pytest.raises(KeyboardInterrupt):
        slimformer.finetune(**settings)
    assert not out.exists()
    sealed = sorted(path.name for path in (place / "interrupted.training" / "rates").iterdir())
    assert sealed == ["lr-1e-09"]
    with pytest.raises(TrainingError, match=r"an unfinished run lies in .*; add `--resume`"):
        slimformer.finetune(**settings)
    with pytest.raises(TrainingError, match="had `lr_grid` ="):
        slimformer.finetune(**{**settings, "lr_grid": "1e-9,5"}, resume=True)
    result = slimformer.finetune(**settings, resume=True)
    assert len(steps) == 30 + 24 + 24
    assert result.rates == grid.rates
    assert same(weights(result.model), weights(grid.model))
    assert not (place / "interrupted.training").exists()


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.slow
def test_a_grid_does_not_go_on_with_other_data(split, place, common, tmp_path, monkeypatch):
    """Neither by training on it, nor by choosing between scores of two dev sets."""
    data = shutil.copytree(place / "data", tmp_path / "data")
    settings = {**common, "max_steps": 2, "data": data, "lr_grid": "1e-3,1e-2", "out": tmp_path / "out"}
    step, steps = torch.optim.AdamW.step, []

    def counted(*arguments, **named):
        steps.append(1)
        if len(steps) == 4:  # at the end of the second rate
            raise KeyboardInterrupt
        return step(*arguments, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", counted)
    with pytest.raises(KeyboardInterrupt):
        slimformer.finetune(**settings)
    (file,) = data.glob(f"{split}.*")
    before = file.read_text()
    file.write_text(before + before.splitlines()[-1] + "\n")
    with pytest.raises(TrainingError, match=r"the data of the run in .* was changed since it began"):
        slimformer.finetune(**settings, resume=True)
    file.write_text(before)
    assert slimformer.finetune(**settings, resume=True).rates.keys() >= {"0.001", "0.01"}


def test_interrupted_in_the_first_rate_it_leaves_nothing(common, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        slimformer.finetune(**common, lr_grid="1e-3,1e-2", out=tmp_path / "out")
    assert not runs.listing(tmp_path)


def test_a_metric_of_which_less_is_better(tmp_path):
    """Perplexity: the rate with the lowest one is kept, and scores are shown as they were measured."""
    base, data = runs.decoder(tmp_path / "base"), tmp_path / "data"
    data.mkdir()
    for split, rows in (("train", 64), ("dev", 16)):
        (data / f"{split}.txt").write_text("\n".join("the film was good and the end was bad" for _ in range(rows)))
    settings = {"model": base, "task": "language-modelling", "data": data, "max_length": 8, "max_steps": 4}
    result = slimformer.finetune(**settings, batch_size=8, lr_grid="1e-9,1e-2", lr_widenings=0, quiet=True)
    metric = next(iter(result.metrics))
    assert result.rates["0.01"] < result.rates["1e-09"]
    assert result.metrics[metric] == result.rates["0.01"]


@pytest.mark.slow
def test_masks_have_it_too_on_the_command_line_and_in_a_file(place, tmp_path):
    flags = ["--model", place / "base", "--task", "classification", "--data", place / "data", "--max-steps", "2"]
    shared = [*flags, "--batch-size", "8", "--blocks", "0-", "--json", "--quiet"]
    one = runs.run("mask", *shared, "--lr-grid", "2e-3,2e-2", "--lr-widenings", "0", "--out", tmp_path / "one").json
    (tmp_path / "run.yaml").write_text("lr_grid: [2.0e-3, 2.0e-2]\nlr_widenings: 0\n")
    two = runs.run("mask", *shared, "--config", tmp_path / "run.yaml", "--out", tmp_path / "two").json
    assert one["rates"] == two["rates"]
    assert one["rates"].keys() == {"0.002", "0.02"}
    assert same(*(weights(slimformer.load(tmp_path / name).model) for name in ("one", "two")))
    measured = runs.run("evaluate", tmp_path / "one", "--data", place / "data", "--json").json["metrics"]
    assert measured == one["metrics"]


@pytest.mark.slow
def test_quantizing_a_bare_base_trains_its_teacher_once(place, common, tmp_path):
    out = tmp_path / "out"
    result = slimformer.quantize(**{**common, "max_steps": 2}, lr_grid="1e-4,1e-3", lr_widenings=0, out=out)
    assert runs.listing(tmp_path) >= {"out", "out.finetuned"}
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.finetuned"}
    chain = read_manifest(out).steps
    assert [step.method for step in chain] == ["finetune", "quantize"]
    assert chain[-1].config["lr_scores"] == result.rates
    assert slimformer.verify(out).max_difference == 0
    again = slimformer.quantize(**{**common, "max_steps": 2}, lr_grid="1e-4,1e-3", lr_widenings=0, out=out, resume=True)
    assert again.rates == result.rates


@pytest.mark.slow
def test_distillation_chooses_by_the_task_its_student_is_measured_on(place, common, tmp_path):
    settings = {"teacher": place / "base", "corpus": place / "data" / "train.tsv", "text_column": "text", "layers": 1}
    steps = {"max_steps": 2, "batch_size": 4, "max_length": 16, "quiet": True}
    with pytest.raises(ConfigError, match="a corpus has no score on dev; give `--then-task` and `--data`"):
        slimformer.distill(**settings, **steps, lr_grid="1e-4,1e-3", out=tmp_path / "out")
    task = {
        "then_task": "classification",
        "data": place / "data",
        "finetune_steps": 4,
        "report": tmp_path / "report.html",
    }
    grid = {"lr_grid": "1e-4,1e-2", "lr_widenings": 0}
    result = slimformer.distill(**settings, **steps, **task, **grid, out=tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out-classification", "report.html"}
    best = max(result.rates, key=lambda rate: (result.rates[rate], -float(rate)))
    assert result.task.metrics["accuracy"] == result.rates[best]
    alone = slimformer.distill(**settings, **steps, lr=float(best))
    assert same(weights(alone.model), weights(slimformer.load(tmp_path / "out").model))
    shutil.copytree(tmp_path / "out-classification", tmp_path / "out2-classification")
    with pytest.raises(ArtifactError, match="out2-classification` exists"):
        slimformer.distill(**settings, **steps, **task, **grid, out=tmp_path / "out2")


def test_every_method_that_has_a_learning_rate_has_a_grid():
    trained = [METHODS.get(name).config_class.model_fields for name in METHODS.own]
    assert [fields for fields in trained if "lr" in fields]
    assert all(("lr" in fields) == ("lr_grid" in fields) for fields in trained)


def test_an_artifact_that_was_harmed_is_not_published_again(place, grid, tmp_path):
    copy = shutil.copytree(place / "grid", tmp_path / "copy")
    (copy / "config.json").write_text(json.dumps({**json.loads((copy / "config.json").read_text()), "x": 1}))
    with pytest.raises(ArtifactError, match=r"config\.json"):
        republish(copy, tmp_path / "again", {"lr": 1.0})
    assert runs.listing(tmp_path) == {"copy", *(f"copy/{name}" for name in runs.listing(copy))}


def test_a_grid_trusts_code_of_a_model_as_a_run_does(common):
    """Before its first rate too, where models are looked at."""
    seen = []

    class Watching(METHODS.get("finetune")):
        def check(self):
            seen.append(models.trusted())
            super().check()
            raise ConfigError("seen")

    settings = {name: value for name, value in common.items() if name != "quiet"}
    for more in ({"lr": 1e-3}, {"lr_grid": "1e-3,1e-2"}):
        config = Watching.config_class.make({**settings, **more})
        with pytest.raises(ConfigError, match="seen"):
            run(Watching, config, RunOptions(trust_remote_code=True))
    assert seen == [True, True]
