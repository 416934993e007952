"""Settings that nobody gave: the numbers used are shown, recorded, and no reason to refuse a resumed run."""

from __future__ import annotations

import json

import pytest

from slimformer.artifact import Manifest, read_manifest
from tests import corpus, runs

TASK = ["--task", "classification", "--batch-size", 8]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A base, its data and some text; tests do not change them."""
    folder = tmp_path_factory.mktemp("place")
    corpus.model_folder(folder / "base")
    corpus.data_folder(folder / "data", train=40)
    (folder / "text.txt").write_text("\n".join(f"the film number {number} was good" for number in range(40)))
    assert finetune(folder, folder / "tuned", "--quiet").code == 0
    return folder


def finetune(place, out, *more):
    common = ["--model", place / "base", "--data", place / "data", *TASK, "--epochs", 2]
    return runs.run("finetune", *common, "--out", out, *more)


def shown(done):
    (line,) = [line for line in done.err.splitlines() if line.startswith("left open: ")]
    flags = (part.removeprefix("--").partition(" ") for part in line.removeprefix("left open: ").split(", "))
    return {name: value for name, _, value in flags}


def recorded(folder):
    step = read_manifest(folder).steps[-1]
    return {name: step.config[name] for name in step.left_open}


def test_what_follows_from_task_and_model_is_shown_and_recorded(place, tmp_path):
    done = finetune(place, tmp_path / "out")
    assert done.code == 0, done.err
    used = shown(done)
    threads = used.pop("threads")
    # 40 rows in batches of 8, twice; the model takes 64 tokens.
    assert used == {"store": "float32", "max-length": "64", "max-steps": "10", "eval-every": "5"}
    expected = {"store": "float32", "max_length": 64, "max_steps": 10, "eval_every": 5, "threads": int(threads)}
    assert recorded(tmp_path / "out") == expected
    # The number shown is the number used.
    assert "step 5/10" in done.err
    assert read_manifest(tmp_path / "out").steps[-1].config["steps"] == 10


def test_what_was_given_is_not_among_them(place, tmp_path):
    given = ["--max-length", 16, "--max-steps", 2, "--eval-every", 1, "--threads", 1, "--store", "half"]
    done = finetune(place, tmp_path / "out", *given)
    assert "left open" not in done.err
    step = read_manifest(tmp_path / "out").steps[-1]
    assert step.left_open == ()
    assert (step.config["max_length"], step.config["max_steps"]) == (16, 2)


def test_machines_and_quiet_users_get_no_line(place, tmp_path):
    quiet = finetune(place, tmp_path / "quiet", "--quiet", "--max-steps", 1)
    assert "left open" not in quiet.err + quiet.out
    assert "left open" not in finetune(place, tmp_path / "json", "--json", "--max-steps", 1).out


def test_a_run_is_resumed_by_what_was_typed(place, tmp_path):
    assert finetune(place, tmp_path / "out", "--quiet").code == 0
    before = (tmp_path / "out" / "slimformer.json").read_bytes()
    assert finetune(place, tmp_path / "out", "--quiet", "--resume").code == 0
    assert (tmp_path / "out" / "slimformer.json").read_bytes() == before
    finetune(place, tmp_path / "out", "--resume", "--max-length", 32).refused("exists")
    # What was left open was not asked for, even if it came out the same.
    finetune(place, tmp_path / "out", "--resume", "--max-length", 64).refused("exists")


def test_a_grid_keeps_what_its_best_run_used(place, tmp_path):
    grid = ["--lr-grid", "1e-4,1e-3", "--lr-widenings", 0, "--max-steps", 1, "--json", "--quiet"]
    first = finetune(place, tmp_path / "out", *grid).json
    assert recorded(tmp_path / "out").keys() >= {"max_length", "eval_every", "store"}
    assert finetune(place, tmp_path / "out", *grid, "--resume").json["rates"] == first["rates"]


def test_quantize_and_elastic(place, tmp_path):
    common = ["--model", place / "tuned", "--data", place / "data", *TASK, "--max-steps", 2]
    done = runs.run("quantize", *common, "--weights", "4", "--out", tmp_path / "packed")
    used = shown(done)
    assert (used["embedding"], used["no-dropout"]) == ("int4", "")
    assert recorded(tmp_path / "packed")["dropout"] is False
    done = runs.run("elastic", *common, "--sizes", "0.5,1", "--out", tmp_path / "elastic")
    assert "--order activation, --distil 1, --probabilities 0.5,0.5" in done.err
    assert recorded(tmp_path / "elastic")["order"] == "activation"


def test_new_weights_have_a_shape(place, tmp_path):
    new = ["--layers", 1, "--hidden", 32, "--heads", 2, "--corpus", place / "text.txt", "--vocabulary", 300]
    done = runs.run("elastic", *new, "--max-steps", 1, "--batch-size", 4, "--out", tmp_path / "out")
    used = shown(done)
    assert (used["scratch"], used["order"], used["distil"]) == ("llama", "none", "0")
    assert (
        recorded(tmp_path / "out")["ffn"]
        == json.loads((tmp_path / "out" / "config.json").read_text())["intermediate_size"]
    )


def test_distill(place, tmp_path):
    common = ["--teacher", place / "base", "--corpus", place / "text.txt", "--max-steps", 2, "--batch-size", 4]
    done = runs.run("distill", *common, "--layers", 1, "--out", tmp_path / "out")
    used = shown(done)
    del used["threads"]
    assert used == {
        "store": "float32",
        "max-length": "64",
        "relation-heads": "32",
        "hidden": "32",
        "heads": "4",
        "ffn": "64",
        "teacher-layer": "1",
    }
    assert (
        recorded(tmp_path / "out")["teacher_layer"] == read_manifest(tmp_path / "out").steps[-1].config["chosen_layer"]
    )


@pytest.mark.parametrize(("objective", "rounds", "share"), [("masked", 1, 0.15), ("tsdae", 0, 0.6)])
def test_adapt(objective, rounds, share, place, tmp_path):
    common = ["--model", place / "base", "--corpus", place / "text.txt", "--max-steps", 1, "--batch-size", 4]
    quick = ["--head-steps", 1, "--objective", objective, "--quiet"]
    assert runs.run("adapt", *common, *quick, "--out", tmp_path / "out").code == 0
    used = recorded(tmp_path / "out")
    assert (used["rounds"], used["mask_share"], used["max_length"]) == (rounds, share, 64)
    assert used.get("positions") == ("all" if rounds else None)


def test_trim(place, tmp_path):
    common = ["--model", place / "tuned", "--corpus", place / "text.txt"]
    assert shown(runs.run("trim", *common, "--out", tmp_path / "out")) == {"store": "float32", "coverage": "0.9995"}
    assert shown(runs.run("trim", *common, "--keep", 15, "--out", tmp_path / "few")) == {"store": "float32"}


def test_the_card_has_a_table_of_settings(place):
    card = (place / "tuned" / "README.md").read_text()
    assert "## Settings of finetune\n\n| Setting | Value |\n| --- | --- |\n" in card
    assert "| `batch_size` | 8 |" in card
    assert "| `max_length` | 64 |" in card
    assert "| tensorboard |" not in card  # nothing was decided there
    assert "decided by task, model or machine: `eval_every`, `max_length`" in card


def test_earlier_artifacts_are_read_as_they_are(place):
    manifest = read_manifest(place / "tuned")
    step = manifest.steps[-1].model_copy(update={"left_open": ()})
    earlier = manifest.model_copy(update={"steps": [step]}).to_bytes()
    assert "left_open" not in json.loads(earlier)["steps"][-1]
    assert Manifest.from_bytes(earlier).steps[-1].left_open == ()
