"""Runs that are really killed, at several points, end with the very weights of an undisturbed run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from slimformer.methods.elastic.config import ElasticConfig
from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.mask.config import MaskConfig
from slimformer.methods.output import OutputDirectory
from slimformer.methods.quantize.config import QuantizeConfig
from tests import corpus, forking, runs

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 14  # more than two epochs of 96 examples in batches of 16
FLAGS = [
    "finetune", "--task", "classification", "--max-steps", str(STEPS), "--batch-size", "16", "--lr", "1e-3",
    "--save-every", "3", "--eval-every", "4", "--log-every", "1", "--threads", "1", "--json",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    corpus.model_folder(folder / "base")
    corpus.data_folder(folder / "data")
    return folder


def command(place: Path, out: Path, *more: str) -> list[str]:
    """The command with the flags in `more` in place of those it has."""
    settings = {"--model": str(place / "base"), "--data": str(place / "data"), "--out": str(out)}
    settings |= dict(zip(FLAGS[1:-1:2], FLAGS[2:-1:2], strict=True))
    kept = [word for flag, value in settings.items() if flag not in more for word in (flag, value)]
    return [FLAGS[0], *kept, FLAGS[-1], *more]


def finish(place: Path, out: Path, *more: str) -> dict:
    return forking.run(*command(place, out, *more)).json


def digest(out: Path) -> str:
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def undisturbed(place) -> tuple[str, dict]:
    """A run in a process that imported everything itself, with which all others are compared."""
    out = place / "undisturbed"
    done = subprocess.run(runs.in_a_process(*command(place, out)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert not out.with_name("undisturbed.training").exists()
    return digest(out), summary


def kill_when(place: Path, out: Path, condition, *more: str) -> bool:
    return forking.killed_when(condition, *command(place, out, *more))


@pytest.mark.slow
def test_two_runs_give_the_same_bytes(place, undisturbed):
    finish(place, place / "again")
    assert digest(place / "again") == undisturbed[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("between", lambda run: (run / "checkpoint-6" / "sealed.json").exists()),
        ("writing", lambda run: (run / "checkpoint-6").exists()),
        ("unsealed", lambda run: (run / "checkpoint-9" / "optimizer.pt").exists()),
        ("early", lambda run: (run / "settings.json").exists()),
        ("best", lambda run: (run / "best.tmp").exists() or (run / "best.safetensors").exists()),
    ],
)
def test_killed_and_resumed_ends_with_the_same_bytes(place, undisturbed, name, seen):
    out = place / name
    run = out.with_name(f"{name}.training")
    assert kill_when(place, out, lambda: seen(run))
    assert not out.exists()
    summary = finish(place, out, "--resume")
    assert digest(out) == undisturbed[0]
    assert summary["metrics"] == undisturbed[1]["metrics"]
    assert not run.exists()


@pytest.mark.slow
def test_killed_again_and_again(place, undisturbed):
    """Each start is killed after its next checkpoint, one of them while the result itself is being written."""
    out = place / "often"
    run = out.with_name("often.training")
    killed = 0
    for step in (3, 9, STEPS):
        killed += kill_when(
            place, out, lambda step=step: (run / f"checkpoint-{step}" / "sealed.json").exists(), "--resume"
        )
    staged = lambda: any(path.name.startswith(".often") for path in place.iterdir())  # noqa: E731
    killed += kill_when(place, out, staged, "--resume")
    assert killed >= 3
    finish(place, out, "--resume")
    assert digest(out) == undisturbed[0]
    assert [path.name for path in place.iterdir() if "often" in path.name] == ["often"]


@pytest.mark.slow
def test_a_finished_run_resumes_to_its_own_result(place, undisturbed):
    summary = finish(place, place / "undisturbed", "--resume")
    assert summary["metrics"] == undisturbed[1]["metrics"]
    assert digest(place / "undisturbed") == undisturbed[0]


@pytest.mark.slow
def test_other_settings_and_forgotten_resume_are_refused(place):
    out = place / "changed"
    run = out.with_name("changed.training")
    assert kill_when(place, out, lambda: (run / "settings.json").exists())
    runs.run(*command(place, out)).refused("add `--resume` to go on with it")
    runs.run(*command(place, out, "--resume", "--seed", "7")).refused("had `--seed` = `0`, not `7`")
    other = corpus.data_folder(place / "data", train=97).parent  # one row more in the same file
    try:
        runs.run(*command(other, out, "--resume")).refused("the data of the run in")
    finally:
        corpus.data_folder(place / "data")


@pytest.mark.slow
def test_a_second_run_on_the_same_place_is_refused_at_once(place):
    """Whatever it was told, and however the first one ends, which leaves no lock behind."""
    out = place / "shared"
    endless = ["100000" if flag == str(STEPS) else flag for flag in runs.in_a_process(*command(place, out))]
    first = subprocess.Popen(endless, stderr=subprocess.DEVNULL)
    try:
        while not out.with_name("shared.training").exists():
            assert first.poll() is None
            time.sleep(0.01)
        for more in ((), ("--resume",), ("--overwrite",)):
            given = ["--model", place / "base", "--data", place / "data", "--out", out, *more]
            runs.run(*FLAGS, *given).refused("another run is at work in `", "shared.training`; wait until it ends")
    finally:
        first.kill()
        first.wait()
    OutputDirectory.of(str(out)).training.check_idle()


CARRIED_OUT = ("--save-every", "2", "--log-every", "3", "--gradient-checkpointing")


@pytest.mark.slow
def test_how_a_run_is_carried_out_may_change_in_the_middle(place, undisturbed):
    """Saved and logged at other steps, with activations computed anew: the same bytes."""
    out = place / "otherwise"
    run = out.with_name("otherwise.training")
    assert kill_when(place, out, lambda: (run / "checkpoint-6" / "sealed.json").exists())
    seen = []

    def saved() -> bool:
        seen.extend(path.name for path in run.glob("checkpoint-*"))
        return (run / "checkpoint-10" / "sealed.json").exists()

    assert kill_when(place, out, saved, "--resume", *CARRIED_OUT)
    assert "checkpoint-8" in seen  # counted by two from where it was
    told = forking.run(*command(place, out, "--resume", *CARRIED_OUT)).err.splitlines()
    assert digest(out) == undisturbed[0]
    assert [line.split("/")[0] for line in told if line.startswith("step ") and "learning_rate" in line] == [
        "step 12",
        "step 14",
    ]
    assert finish(place, out, "--resume", "--save-every", "5")["metrics"] == undisturbed[1]["metrics"]


@pytest.mark.slow
def test_a_batch_may_be_computed_in_other_parts_from_the_middle_on(place, tmp_path):
    """The same but for what sums of other parts round to; dropout, which each part draws anew, is off."""
    still = corpus.model_folder(tmp_path / "still", dropout=0.0)
    given = ("--model", str(still))
    finish(place, tmp_path / "whole", *given)
    out = tmp_path / "parts"
    run = out.with_name("parts.training")
    assert kill_when(place, out, lambda: (run / "checkpoint-6" / "sealed.json").exists(), *given)
    finish(place, out, *given, "--resume", "--accumulation", "4")
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


CONSTANT = ("--schedule", "constant", "--warmup", "0", "--eval-every", "2")


@pytest.mark.slow
def test_a_run_without_a_schedule_may_be_made_longer(place):
    finish(place, place / "long", *CONSTANT)
    out = place / "longer"
    run = out.with_name("longer.training")
    assert kill_when(place, out, lambda: (run / "checkpoint-6").exists(), *CONSTANT, "--max-steps", "8")
    shorter = forking.run(*command(place, out, *CONSTANT, "--resume", "--max-steps", "2"))
    assert shorter.code == 1
    assert "error: `--max-steps` is 2, and the run in" in shorter.err
    assert "steps; give as many or more, or remove" in shorter.err
    finish(place, out, *CONSTANT, "--resume")
    assert digest(out) == digest(place / "long")


@pytest.mark.slow
def test_a_run_with_a_schedule_is_not_made_longer(place):
    out = place / "scheduled"
    run = out.with_name("scheduled.training")
    assert kill_when(place, out, lambda: (run / "settings.json").exists())
    runs.run(*command(place, out, "--resume", "--max-steps", "20")).refused("had `--max-steps` = `14`, not `20`")
    kept = json.loads((run / "settings.json").read_text())
    assert not kept.keys() & {"save_every", "log_every", "accumulation", "threads"}


@pytest.mark.parametrize(
    ("settings", "plans"),
    [
        (FinetuneConfig(), True),
        (FinetuneConfig(schedule="constant"), True),
        (FinetuneConfig(schedule="constant", warmup=0), False),
        (FinetuneConfig(schedule="constant", warmup=0, keep_close="recadam"), True),
        (FinetuneConfig(schedule="constant", warmup=0, keep_close="mars"), False),
        (ElasticConfig(schedule="constant", warmup=0), False),
        (ElasticConfig(schedule="constant", warmup=0, uniform_start=0.5), True),
        (MaskConfig(schedule="constant", warmup=0), False),
        (MaskConfig(schedule="constant", warmup=0, structured="both", sparsity=0.5, max_steps=5), True),
        (QuantizeConfig(schedule="constant", warmup=0), False),
        (QuantizeConfig(schedule="constant", warmup=0, stages=2, max_steps=5), True),
        (QuantizeConfig(schedule="constant", warmup=0, stages=2, first_stage=5), False),
    ],
)
def test_what_depends_on_the_number_of_steps_plans_ahead(settings, plans):
    assert settings.plans_ahead == plans
