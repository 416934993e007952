"""Models side by side: the numbers are those of each alone, rows and draws are shared, and what differs is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from slimformer.errors import DataError, SlimformerError, UsageError
from slimformer.inference.comparison import Budgets, compare
from slimformer.inference.comparison.candidate import split_name
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.runtime.native import is_built
from slimformer.tasks.options import TaskOptions
from tests import corpus, runs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Path:
    """A fine-tuned model, a mask and a ternary model of one base, and an elastic one."""
    folder = tmp_path_factory.mktemp("compared")
    base, data = corpus.model_folder(folder / "base"), corpus.data_folder(folder / "data", train=40, dev=30)
    common = ["--task", "classification", "--data", data, "--max-steps", 2, "--batch-size", 8, "--quiet"]
    assert runs.run("finetune", "--model", base, *common, "--out", folder / "plain").code == 0
    assert runs.run("mask", "--model", base, *common, "--blocks", "0-", "--out", folder / "mask").code == 0
    assert runs.run("quantize", "--model", folder / "plain", *common, "--out", folder / "ternary").code == 0
    assert runs.run("elastic", "--model", base, *common, "--out", folder / "elastic").code == 0
    return folder


def names(shelf: Path) -> list[str]:
    return [str(shelf / name) for name in ("plain", "mask", "ternary", "elastic")]


@pytest.fixture(scope="module")
def compared(shelf: Path):
    options = TaskOptions(data=str(shelf / "data"))
    every = [*names(shelf), f"{shelf / 'elastic'}@S"]
    return compare(every, options, budgets=Budgets.read("1kB", 1e4), timed=5)


def test_quality_is_what_evaluate_measures(shelf, compared):
    for row in compared.rows[:4]:
        alone = evaluate_on_task(row.name, TaskOptions(data=str(shelf / "data")))
        assert row.quality.metrics == alone["metrics"]


def test_the_interval_holds_the_metric_and_classes_add_up(compared):
    for row in compared.rows:
        low, high = row.quality.interval
        assert low <= row.quality.primary <= high
        classes = row.quality.classes
        assert sum(map(sum, classes.confusion)) == sum(classes.support) == compared.examples == 30
        right = sum(counts[index] for index, counts in enumerate(classes.confusion))
        assert right / 30 == pytest.approx(row.quality.metrics["accuracy"])


def test_a_mask_is_counted_with_its_base(shelf, compared):
    _, mask, ternary, *_ = compared.rows
    assert mask.stored.own == (shelf / "mask" / "mask.safetensors").stat().st_size
    assert mask.stored.base == (shelf / "base" / "model.safetensors").stat().st_size
    assert mask.stored.total == mask.stored.own + mask.stored.base
    assert ternary.stored.base == 0


def test_one_size_of_an_elastic_model_is_smaller(compared):
    *_, largest, small = compared.rows
    assert small.parameters < largest.parameters
    assert small.stored.total == 4 * small.parameters


@pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")
def test_on_the_engine_all_but_speed_and_memory_is_the_same(shelf, compared):
    options = TaskOptions(data=str(shelf / "data"))
    every = [*names(shelf), f"{shelf / 'elastic'}@S"]
    result = compare(every, options, timed=2, engine="native")
    assert result.as_dict()["engine"] == "native"
    for native, torch in zip(result.rows, compared.rows, strict=True):
        assert (native.parameters, native.stored) == (torch.parameters, torch.stored)
        assert native.quality.metrics["accuracy"] == pytest.approx(torch.quality.metrics["accuracy"], abs=0.07)
    with pytest.raises(UsageError, match="`--engine` is `fast`"):
        compare(every, options, engine="fast")


def test_what_fits_is_marked(compared):
    told = compared.as_dict()
    assert [model["fits"] for model in told["models"]] == [False] * 5
    assert told["best"] is None
    assert json.loads(json.dumps(told)) == told


def test_without_budgets_nothing_is_marked_and_there_is_a_best(shelf):
    options = TaskOptions(data=str(shelf / "data"))
    result = compare(names(shelf)[:2], options, timed=2)
    assert [model["fits"] for model in result.as_dict()["models"]] == [None, None]
    best = max(result.rows, key=lambda row: row.quality.primary)
    assert result.best.quality.primary == best.quality.primary
    assert best.behind == (0.0, 0.0)


def test_a_budget_of_bytes_leaves_the_rest_out(shelf):
    options = TaskOptions(data=str(shelf / "data"))
    own = compare(names(shelf)[2:3], options, timed=2).rows[0].stored.total
    result = compare(names(shelf)[:3], options, budgets=Budgets.read(own), timed=2)
    assert [model["fits"] for model in result.as_dict()["models"]] == [False, False, True]
    assert result.best.name == names(shelf)[2]


def test_differences_to_the_best_are_taken_on_the_same_draws(compared):
    best = max(compared.rows, key=lambda row: row.quality.primary)
    other = min(compared.rows, key=lambda row: row.quality.primary)
    apart = other.quality.resampled - best.quality.resampled
    assert other.behind == tuple(np.quantile(apart, [0.025, 0.975]))


def test_embeddings_have_no_interval(shelf):
    options = TaskOptions(task="retrieval", data=str(shelf / "data"))
    (row,) = compare([shelf / "plain"], options, timed=2).rows
    assert row.quality.interval is None
    assert row.quality.classes is None


@pytest.mark.parametrize(
    ("models", "budget", "words"),
    [
        ([], {}, "no model given"),
        (["plain", "plain"], {}, "named twice"),
        (["plain"], {"max_bytes": "ten"}, "`--max-bytes` is `ten`"),
        (["plain"], {"max_ms": 0}, "`--max-ms` is `0`"),
        (["plain"], {"max_ms": float("nan")}, "`--max-ms` is `nan`"),
    ],
)
def test_what_cannot_be_meant_is_refused(shelf, models, budget, words):
    with pytest.raises(UsageError, match=words):
        compare(
            [shelf / name for name in models], TaskOptions(data=str(shelf / "data")), budgets=Budgets.read(**budget)
        )


def test_models_for_other_labels_are_refused(shelf, tmp_path):
    other = corpus.data_folder(tmp_path / "other", train=20, dev=10)
    for file in other.iterdir():
        file.write_text(file.read_text().replace("\tyes", "\tgood"))
    out = tmp_path / "out"
    assert runs.finetune(shelf / "base", "classification", other, out, "--quiet").code == 0
    with pytest.raises(SlimformerError, match="yes"):
        compare([shelf / "plain", out], TaskOptions(data=str(shelf / "data")), timed=2)


def test_other_kinds_of_task_are_refused(shelf, tmp_path):
    with pytest.raises(DataError):
        compare([shelf / "plain"], TaskOptions(data=str(tmp_path)), timed=2)


def test_a_size_is_behind_the_last_at(tmp_path):
    (tmp_path / "a@b").mkdir()
    assert split_name(str(tmp_path / "a@b")) == (str(tmp_path / "a@b"), None)
    assert split_name(str(tmp_path / "a@b@S")) == (str(tmp_path / "a@b"), "S")
    assert split_name("owner/name@S") == ("owner/name@S", None)
