"""What `--dry-run` says, beside what the run does then."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from slimformer.errors import DataError, TrainingError, UsageError
from slimformer.methods.distill.config import DistillConfig
from slimformer.methods.distill.method import Distill
from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.finetune.method import Finetune
from slimformer.methods.method import RunOptions
from slimformer.methods.rehearsal import describe_seconds, rehearse
from slimformer.train.rehearsal import current_rehearsal
from tests import corpus, runs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("room")
    corpus.model_folder(folder / "base")
    corpus.data_folder(folder / "data")
    return folder


def task(room: Path, out: Path, **settings: object) -> FinetuneConfig:
    place = {"model": str(room / "base"), "data": str(room / "data"), "out": str(out)}
    return FinetuneConfig.make({**place, "task": "classification", "batch_size": 8, **settings})


def test_steps_and_settings_are_those_of_the_run(room: Path, tmp_path: Path) -> None:
    flags = ("finetune", "--model", room / "base", "--task", "classification", "--data", room / "data")
    flags = (*flags, "--out", tmp_path / "out", "--epochs", 1, "--batch-size", 8, "--json")
    plan = runs.run(*flags, "--dry-run").json
    assert not list(tmp_path.iterdir())
    done = runs.run(*flags).json
    assert plan["steps"] == done["steps"]
    assert plan["examples"] == 8 * done["steps"]
    assert plan["examples"] < plan["tokens"] < 64 * plan["examples"]
    assert plan["left_open"]["max_steps"] == done["steps"]
    assert plan["memory"] > 4 * plan["parameters"]
    assert plan["trained"] == plan["parameters"]


def test_a_long_run_takes_a_few_steps_only(room: Path, tmp_path: Path) -> None:
    plan = rehearse(Finetune, task(room, tmp_path / "out", max_steps=1_000_000), RunOptions(quiet=True))
    assert plan.steps == 1_000_000
    assert plan.seconds == pytest.approx(1_000_000 * plan.step_seconds)
    assert current_rehearsal() is None
    assert not list(tmp_path.iterdir())


def test_a_grid_is_as_many_runs_as_it_has_rates(room: Path, tmp_path: Path) -> None:
    plan = rehearse(Finetune, task(room, tmp_path / "out", max_steps=10, lr_grid=(1e-4, 1e-3)), RunOptions(quiet=True))
    assert plan.runs == 2
    assert plan.seconds == pytest.approx(20 * plan.step_seconds)


def test_what_a_run_refuses_a_dry_run_refuses(room: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(Exception, match="exists and is no artifact"):
        rehearse(Finetune, task(room, tmp_path / "out", max_steps=2), RunOptions(quiet=True))
    with pytest.raises(TrainingError, match="`--out` is"):
        rehearse(Finetune, task(room, room / "data", max_steps=2), RunOptions(quiet=True))


def test_a_dry_run_begins_at_the_beginning(room: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out `--resume`"):
        rehearse(Finetune, task(room, tmp_path / "out", max_steps=2), RunOptions(quiet=True, resume=True))


def test_a_push_that_could_not_be_made_is_refused(room: Path) -> None:
    config = FinetuneConfig.make({"model": str(room / "base"), "data": str(room / "data"), "task": "classification"})
    with pytest.raises(UsageError, match="nothing is written without `--out`"):
        rehearse(Finetune, config, RunOptions(quiet=True, push_to_hub="someone/model"))


def test_what_a_run_would_keep_is_not_kept(room: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a good film\n" * 400)
    before = sorted(tmp_path.rglob("*"))
    kept = {"token_cache": str(tmp_path / "tokens"), "teacher_cache": str(tmp_path / "kept"), "teacher_cache_limit": 1}
    config = DistillConfig.make(
        {
            **{"teacher": str(room / "base"), "corpus": str(tmp_path / "texts"), "out": str(tmp_path / "out")},
            **{"layers": 1, "max_steps": 3, "batch_size": 2, "max_length": 16},
            **kept,
        }
    )
    assert rehearse(Distill, config, RunOptions(quiet=True)).steps == 3
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "texts" / "a.txt.gz").write_bytes(gzip.compress(b"a good film\n" * 400))
    with pytest.raises(DataError, match="or unpack the file"):
        rehearse(Distill, config, RunOptions(quiet=True))


def test_a_run_after_a_dry_run_is_the_same_as_without(room: Path, tmp_path: Path) -> None:
    flags = ("--seed", 3, "--quiet", "--json")
    one = runs.finetune(room / "base", "classification", room / "data", tmp_path / "one", *flags).json
    runs.finetune(room / "base", "classification", room / "data", tmp_path / "two", *flags, "--dry-run")
    two = runs.finetune(room / "base", "classification", room / "data", tmp_path / "two", *flags).json
    assert one["metrics"] == two["metrics"]


@pytest.mark.parametrize(("seconds", "text"), [(3, "3 s"), (600, "10 min"), (36_000, "10.0 h")])
def test_times_are_said_in_their_units(seconds: float, text: str) -> None:
    assert describe_seconds(seconds) == text
