"""`slimformer finetune`: what it prints and where, what it leaves, and how flags, files and folders go together."""

from __future__ import annotations

import json
import math
import os
import pty
import re
import shutil
import subprocess
import sys

import pytest
import transformers as hf

from slimformer.artifact import read_manifest
from slimformer.methods.finetune import FinetuneConfig
from tests import corpus, forking, runs


def files(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_the_whole_way_in_processes_of_their_own(tmp_path, monkeypatch):
    """What the README promises, as typed: train, evaluate, bench, verify; then one byte is changed."""
    corpus.data_folder(tmp_path / "data", train=24, dev=8)
    monkeypatch.chdir(tmp_path)
    flags = ["--model", "minilm", "--task", "classification", "--data", "data", "--max-steps", "2"]
    command = runs.in_a_process("finetune", *flags, "--batch-size", "8", "--out", "out", "--json", "--quiet")
    done = subprocess.run(command, capture_output=True, text=True)
    trained = runs.Done(done.returncode, done.stdout, done.stderr)
    assert trained.err == ""
    assert trained.json["steps"] == 2
    assert files(tmp_path) == {"data", "out"}
    measured = forking.run("evaluate", "out", "--data", "data", "--json")
    assert measured.err == ""
    assert measured.json["metrics"] == trained.json["metrics"]
    assert measured.json["examples"] == 8
    verified = forking.run("verify", "out")
    assert (verified.code, verified.err) == (0, "")
    weights = tmp_path / "out" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    runs.run("verify", tmp_path / "out").refused("`model.safetensors` of artifact", "was changed")


def test_json_is_all_there_is_on_standard_output(base, data, tmp_path):
    done = runs.finetune(base, "classification", data, tmp_path / "out", "--json")
    summary = done.json
    assert summary["out"] == str(tmp_path / "out")
    assert summary["split"] == "dev"
    assert summary["steps"] == 2
    assert summary["notes"] == []
    assert set(summary["metrics"]) == {"accuracy", "f1_macro", "f1_micro", "matthews"}
    assert all(math.isfinite(value) for value in summary["metrics"].values())
    assert files(tmp_path) == {"out"}


def test_people_get_a_few_lines(base, data, tmp_path):
    done = runs.finetune(base, "classification", data, tmp_path / "out", "--quiet")
    assert re.fullmatch(r"dev: accuracy 0\.\d{4}, .*\n2 steps in \d+ s.*\nsaved in .*out\n", done.out)


def test_progress_lines_without_a_terminal(base, data, tmp_path):
    done = runs.finetune(base, "classification", data, tmp_path / "out", "--log-every", "1")
    lines = done.err.splitlines()
    assert [line.split("  ")[0] for line in lines if "loss" in line] == ["step 1/2", "step 2/2"]
    assert "accuracy" in lines[-1]
    assert all("left" in line for line in lines)
    assert "\x1b" not in done.err


def test_quiet_says_nothing(base, data, tmp_path):
    done = runs.finetune(base, "classification", data, tmp_path / "out", "--log-every", "1", "--quiet", "--json")
    assert done.err == ""
    assert done.json["steps"] == 2


@pytest.mark.slow
def test_a_bar_on_a_terminal_which_is_left_clean(base, data, tmp_path):
    """On a pseudo-terminal: a bar that moves, JSON alone on standard output, the cursor back, no leftovers."""
    controller, terminal = pty.openpty()
    flags = ["--model", base, "--task", "classification", "--data", data, "--out", tmp_path / "out", "--max-steps", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from slimformer.cli import main; main()", "finetune", *map(str, flags), "--json"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(terminal)
    written = b""
    try:
        while chunk := os.read(controller, 4096):
            written += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    assert process.stdout is not None
    out = process.stdout.read()
    process.stdout.close()
    assert process.wait() == 0, written
    os.close(controller)
    shown = written.decode()
    assert json.loads(out)["steps"] == 2
    assert "training" in shown
    assert "2/2" in shown
    assert "accuracy" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is shown again
    assert shown.rindex("\n") > shown.rindex("2/2")  # and stands on a line of its own
    assert "step 1/2" not in shown


def test_notes_reach_the_user(base, tmp_path):
    """A single file, of which a tenth is held out: said on standard error and in the JSON."""
    source = corpus.data_folder(tmp_path / "source") / "train.tsv"
    shutil.move(source, tmp_path / "reviews.tsv")
    done = runs.finetune(base, "classification", tmp_path / "reviews.tsv", tmp_path / "out", "--json")
    (note,) = done.json["notes"]
    assert note.startswith("dev: a tenth of `")
    assert f"note: {note}\n" in done.err
    quiet = runs.finetune(base, "classification", tmp_path / "reviews.tsv", tmp_path / "out2", "--json", "--quiet")
    assert quiet.err == ""
    assert quiet.json["notes"] == [note]
    measured = runs.run("evaluate", tmp_path / "out", "--data", tmp_path / "reviews.tsv", "--json")
    assert measured.err == f"note: {note}\n"
    assert measured.json["notes"] == [note]
    assert measured.json["metrics"] == done.json["metrics"]
    measured = runs.run("evaluate", tmp_path / "out", "--data", tmp_path / "reviews.tsv", "--quiet")
    assert measured.err == ""


def test_flags_win_over_the_config_file(base, data, tmp_path):
    recipe = tmp_path / "run.yaml"
    recipe.write_text(f"model: {base}\ntask: classification\ndata: {data}\nmax-steps: 5\nbatch_size: 4\nlr: 2e-4\n")
    done = runs.run("finetune", "--config", recipe, "--out", tmp_path / "out", "--max-steps", "1", "--json", "--quiet")
    assert done.json["steps"] == 1
    config = read_manifest(tmp_path / "out").steps[0].config
    assert (config["max_steps"], config["batch_size"], config["lr"]) == (1, 4, 2e-4)


def test_an_existing_result_is_kept_unless_told(base, data, tmp_path):
    out = tmp_path / "out"
    assert runs.finetune(base, "classification", data, out, "--quiet").code == 0
    first = read_manifest(out)
    runs.finetune(base, "classification", data, out, "--seed", "1").refused("exists; choose another `--out`")
    assert read_manifest(out) == first
    assert runs.finetune(base, "classification", data, out, "--seed", "1", "--overwrite", "--quiet").code == 0
    assert read_manifest(out).steps[0].seed == 1
    assert files(tmp_path) == {"out"}


def test_a_bad_run_leaves_the_result_that_is_there(base, data, tmp_path):
    out = tmp_path / "out"
    assert runs.finetune(base, "classification", data, out, "--quiet").code == 0
    first = read_manifest(out)
    flags = ["--overwrite", "--lr", "1e12", "--clip", "0", "--max-steps", "9", "--quiet"]
    runs.finetune(base, "classification", data, out, *flags).refused("the loss became")
    assert read_manifest(out) == first
    assert files(tmp_path) == {"out"}


def test_a_failed_run_keeps_what_it_can_be_resumed_from(base, data, tmp_path):
    """Once a checkpoint is there, a failure does not throw it away."""
    out = tmp_path / "out"
    flags = ["--lr", "1e12", "--clip", "0", "--max-steps", "9", "--save-every", "1", "--quiet"]
    runs.finetune(base, "classification", data, out, *flags).refused("the loss became")
    assert files(tmp_path) == {"out.training"}
    runs.finetune(base, "classification", data, out, "--quiet").refused("add `--resume`")
    assert files(tmp_path) == {"out.training"}


def test_an_empty_folder_may_be_filled(base, data, tmp_path):
    (tmp_path / "out").mkdir()
    assert runs.finetune(base, "classification", data, tmp_path / "out", "--quiet").code == 0


def test_a_missing_parent_is_made(base, data, tmp_path):
    assert runs.finetune(base, "classification", data, tmp_path / "a" / "b" / "out", "--quiet").code == 0
    assert (tmp_path / "a" / "b" / "out" / "slimformer.json").exists()


@pytest.mark.slow
def test_every_setting_is_described_in_the_help():
    # In a process of its own, because what is printed depends on the terminal.
    done = subprocess.run(
        [sys.executable, "-c", "from slimformer.cli import main; main()", "finetune", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "300"},
    )
    assert done.returncode == 0
    flags = set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout))
    words = " ".join(done.stdout.split())
    for name, field in FinetuneConfig.model_fields.items():
        assert f"--{name.replace('_', '-')}" in flags
        assert field.description, name
        assert field.description.replace("`", "") in words.replace("`", ""), name
    assert {"--config", "--resume", "--overwrite", "--json", "--quiet"} <= flags


def test_a_text_model_is_refused_for_images_and_the_other_way_round(base, data, tmp_path):
    viewer = runs.viewer(tmp_path / "viewer")
    runs.finetune(viewer, "classification", data, tmp_path / "out").refused("a model for images (`vit`)")
    runs.finetune(base, "cifar10", data, tmp_path / "out").refused("a model for texts (`bert`)")
    runs.finetune(runs.decoder(tmp_path / "decoder"), "arc", data, tmp_path / "out").refused(
        "`llama`, for which transformers has no `AutoModelForMultipleChoice`"
    )
    assert files(tmp_path) == {"viewer", "decoder"}


def test_a_method_that_needs_a_head_refuses_retrieval_before_any_work(base, tmp_path):
    flags = ["--model", base, "--task", "retrieval", "--data", tmp_path / "nowhere", "--out", tmp_path / "out"]
    runs.run("mask", *flags).refused("task `retrieval` has no head to train", "`slimformer finetune`")
    assert not runs.listing(tmp_path)


def test_texts_are_cut_to_what_the_model_takes(data, tmp_path):
    """A tokenizer that knows no limit, and a model that has one."""
    runs.headed(tmp_path / "base", hf.BertModel)
    settings = tmp_path / "base" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "model_max_length": 10**30}))
    long = tmp_path / "long"
    long.mkdir()
    for split in ("train", "dev"):
        rows = [f"{'the film was good and ' * 30}\t{label}" for label in ("yes", "no")]
        (long / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    done = runs.finetune(tmp_path / "base", "classification", long, tmp_path / "out", "--json", "--quiet")
    assert runs.run("evaluate", tmp_path / "out", "--data", long, "--json").json["metrics"] == done.json["metrics"]
    refused = runs.finetune(tmp_path / "base", "classification", long, tmp_path / "out2", "--max-length", "65")
    refused.refused("`--max-length` is `65`, but the model has 64 positions")
    refused = runs.run("evaluate", tmp_path / "out", "--data", long, "--max-length", "65")
    refused.refused("`--max-length` is `65`, but the model has 64 positions")
