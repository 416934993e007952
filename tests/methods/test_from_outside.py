"""A method registered outside the package: command, Python function, resume, artifact, demo row and order."""

from __future__ import annotations

import json

import pytest
import torch
from pydantic import Field

import slimformer
from slimformer.methods.method import may_follow
from slimformer.methods.task import TaskMethod
from slimformer.registry import METHODS
from slimformer.tasks.options import BaseOptions, TaskOptions
from slimformer.train.options import TrainingOptions
from tests import corpus, runs


class ShrinkConfig(TrainingOptions, TaskOptions, BaseOptions):
    """Fine-tune a model and make its embedding smaller in size."""

    factor: float = Field(0.5, gt=0, description="What the word embedding is multiplied by.")


class Shrink(TaskMethod[ShrinkConfig]):
    """Fine-tune a model whose word embedding is scaled first."""

    name = "shrink"
    config_class = ShrinkConfig

    def prepare(self, model):
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(self.config.factor)
        return


@pytest.fixture
def shrink():
    METHODS.add("shrink", Shrink, "Fine-tune with a scaled embedding.")
    yield
    METHODS.remove("shrink")
    slimformer.__dict__.pop("shrink", None)


@pytest.fixture
def base(tmp_path):
    corpus.data_folder(tmp_path / "data")
    return corpus.model_folder(tmp_path / "base")


def test_the_command_line_knows_it(shrink, base, tmp_path):
    flags = ["--model", base, "--task", "classification", "--data", tmp_path / "data", "--out", tmp_path / "out"]
    done = runs.run("shrink", *flags, "--max-steps", 2, "--factor", 0.25, "--json").json
    assert done["steps"] == 2
    manifest = json.loads((tmp_path / "out" / "slimformer.json").read_text())
    assert manifest["steps"][-1]["method"] == "shrink"
    assert manifest["steps"][-1]["config"]["factor"] == 0.25
    assert runs.run("verify", tmp_path / "out").code == 0
    measured = runs.run("evaluate", tmp_path / "out", "--data", tmp_path / "data", "--json").json
    assert measured["metrics"] == done["metrics"]
    # The same run again, resumed, is read from its artifact.
    again = runs.run("shrink", *flags, "--max-steps", 2, "--factor", 0.25, "--resume", "--json").json
    assert again["metrics"] == done["metrics"]
    assert "Fine-tune with a scaled embedding." in runs.run("--help").out


def test_wrong_settings_are_refused_like_those_of_any_method(shrink, base, tmp_path):
    runs.run("shrink", "--model", base, "--factor", -1).refused("`--factor` is `-1", code=2)
    runs.run("shrink", "--model", base).refused("`--task`, `--data` and `--out` must be given", code=2)


@pytest.mark.slow
def test_it_is_a_python_function(shrink, base, tmp_path):
    settings = {"model": base, "task": "classification", "data": tmp_path / "data", "max_steps": 2, "quiet": True}
    result = slimformer.shrink(**settings, factor=0.25)
    assert result.steps == 2
    assert result.folder is None
    assert slimformer.shrink.__doc__.startswith("Fine-tune a model whose word embedding")
    small, large = (result.model, slimformer.finetune(**settings).model)
    norms = [model.get_input_embeddings().weight.norm() for model in (small, large)]
    assert norms[0] < 0.3 * norms[1]


def test_without_its_package_it_is_no_command(tmp_path):
    done = runs.run("shrink", "--model", "minilm")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: there is no command `shrink`; there are:\n")
    with pytest.raises(AttributeError):
        slimformer.shrink  # noqa: B018


def test_what_may_follow_what():
    methods = {name: METHODS.get(name) for name in METHODS}
    assert may_follow(methods["quantize"], methods["finetune"])
    assert may_follow(methods["finetune"], methods["distill"])
    assert may_follow(methods["mask"], methods["trim"])
    assert may_follow(methods["mask"], methods["quantize"])
    assert not may_follow(methods["finetune"], methods["mask"])
    assert not may_follow(methods["trim"], methods["quantize"])


@pytest.mark.parametrize("name", METHODS.names)
def test_every_method_is_complete(name):
    method = METHODS.get(name)
    assert method.name == name
    assert set(method.required) <= set(method.config_class.model_fields)
    assert method.starts_from in method.config_class.model_fields
    assert "out" in method.config_class.model_fields
    assert METHODS.help(name).endswith(".")
    assert callable(getattr(slimformer, name))
    assert name in dir(slimformer)
