"""Whatever is wrong with a command, its settings or its data: one line, the right exit code, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

from tests import runs
from tests.runs import files_of_at_most

GOOD = "text\tlabel\nthe film was good\tyes\na dull plot\tno\n"


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.tsv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


DATA = {
    "wrong column": (
        {"train": GOOD, "dev": "a\tb\tc\n1\t2\t3\n"},
        [],
        ["dev.tsv` does not tell which column holds the label", "`a`, `b`, `c`"],
    ),
    "column not there": ({"train": GOOD, "dev": GOOD}, ["--text-column", "body"], ["`body`", "`text`, `label`"]),
    "empty file": ({"train": "", "dev": GOOD}, [], ["train.tsv"]),
    "header only": ({"train": "text\tlabel\n", "dev": GOOD}, [], ["train.tsv"]),
    "unknown label in dev": ({"train": GOOD, "dev": GOOD + "a film\tperhaps\n"}, [], ["line 4", "`perhaps`"]),
    "one label": ({"train": "text\tlabel\na\tyes\nb\tyes\n", "dev": GOOD}, [], ["at least two"]),
    "bytes": ({"train": GOOD.encode() + b"caf\xe9\tyes\n", "dev": GOOD}, [], ["train.tsv", "UTF-8"]),
    "blank text": ({"train": GOOD + " \tyes\n", "dev": GOOD}, [], ["line 4", "`text` is empty"]),
    "no dev": ({"train": GOOD}, [], ["has no dev split"]),
    "no files": ({}, [], ["has no train split"]),
}


@pytest.mark.parametrize("name", DATA)
def test_bad_data(name, base, tmp_path, temporary):
    files, flags, words = DATA[name]
    folder = write(tmp_path / "data", **files)
    before = runs.listing(tmp_path)
    runs.finetune(base, "classification", folder, tmp_path / "a" / "out", *flags).refused(*words)
    assert runs.listing(tmp_path) == before
    assert not runs.listing(temporary)


FLAGS = {
    "unknown task": (["--task", "sentiments"], 1, ["task `sentiments` is not known", "classification"]),
    "no such data": (["--data", "/nowhere/data"], 1, ["nothing at `/nowhere/data`"]),
    "no such model": (["--model", "/nowhere/model"], 1, ["no folder at `/nowhere/model`"]),
    "bare unknown model": (["--model", "minilmm"], 1, ["`minilmm` is no folder here", "`minilm`"]),
    "length too large": (["--max-length", "65"], 1, ["`65`", "64"]),
    "length too small": (["--max-length", "2"], 1, ["`2`", "at least 3"]),
    "no length": (["--max-length", "0"], 2, ["`--max-length` is `0`", "greater than or equal to 1"]),
    "no batch": (["--batch-size", "0"], 2, ["`--batch-size` is `0`"]),
    "batch not a number": (["--batch-size", "many"], 2, ["--batch-size", "many"]),
    "negative rate": (["--lr", "-1"], 2, ["`--lr` is `-1`"]),
    "rate not finite": (["--lr", "nan"], 2, ["lr", "finite"]),
    "batch that cannot be split": (["--accumulation", "3"], 1, ["`--batch-size` 8", "multiple of 3"]),
    "unknown flag": (["--batchsize", "8"], 2, ["--batchsize"]),
    "unknown schedule": (["--schedule", "square"], 2, ["schedule", "square"]),
    "another kind of task": (["--task", "image-classification"], 1, ["model for texts", "is about images"]),
    "no such language": (["--language", "de"], 1, ["no languages"]),
    "loss that explodes": (["--lr", "1e11", "--clip", "0", "--max-steps", "9"], 1, ["the loss became", "lower `--lr`"]),
    "a folder that names nothing": (["--out", ".."], 1, ["`--out` is `..`"]),
    "an empty name": (["--out", ""], 2, ["`--out` is ``"]),
    "no room for a name": (["--out", "x" * 250], 1, ["cannot be written", "file name too long"]),
}


@pytest.mark.parametrize("name", FLAGS)
def test_bad_flags(name, base, data, tmp_path, temporary, monkeypatch):
    flags, code, words = FLAGS[name]
    monkeypatch.chdir(tmp_path)
    given = {"--model": base, "--task": "classification", "--data": data, "--out": "out", "--batch-size": 8}
    given |= {"--max-steps": 2, **dict(zip(flags[::2], flags[1::2], strict=True))}
    runs.run("finetune", "--quiet", *(part for item in given.items() for part in item)).refused(*words, code=code)
    assert not runs.listing(tmp_path)
    assert not runs.listing(temporary)


USAGE = {
    "values without flags": (
        ["finetune", "minilm", "sst2"],
        ["`minilm sst2` is left over", "a flag before each value"],
    ),
    "a path with a space": (["inspect", "my", "model"], ["`model` is left over", "quotes"]),
    "the Trainer's rate": (["finetune", "--learning-rate", "1e-4"], ["`--learning-rate`", "do you mean `--lr`?"]),
    "the Trainer's epochs": (["mask", "--num_train_epochs=3"], ["`--num_train_epochs`", "do you mean `--epochs`?"]),
    "a term that is called as a flag": (["distill", "--terms", "relation:1"], ["do you mean `relations`?"]),
    "an order that is called as a flag": (["elastic", "--order", "activations"], ["there is no order `activations`;"]),
    "nothing to quantize": (
        ["quantize", "--weights", "float", "--activations", "none"],
        ["`--weights` is `float` and `--activations` is `none`", "nothing would be quantized"],
    ),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage(name):
    command, words = USAGE[name]
    runs.run(*command).refused(*words, code=2)


@pytest.mark.parametrize("missing", ["--model", "--task", "--data", "--out"])
def test_what_must_be_given(missing, base, data, tmp_path):
    given = {"--model": base, "--task": "classification", "--data": data, "--out": tmp_path / "out"}
    del given[missing]
    runs.run("finetune", *(part for item in given.items() for part in item)).refused(
        f"`{missing}` must be given", code=2
    )
    assert not runs.listing(tmp_path)


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(base, data, tmp_path):
    flags = ["--model", base, "--task", "classification", "--data", data, "--out", tmp_path / "out"]
    command = runs.in_a_process("finetune", *flags, "--max-steps", 100_000, "--save-every", 2)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (tmp_path / "out.training" / "checkpoint-2").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.endswith(
        "interrupted; the same command with `--resume` goes on from its last checkpoint, or begins anew\n"
    )
    assert "Traceback" not in err


YAML = {
    "unknown key": ("batchsize: 8\n", ["run.yaml`: there is no setting `batchsize`", "batch_size"]),
    "bad value": ("batch-size: 0\n", ["run.yaml`: `batch_size` is `0`: should be greater than or equal to 1"]),
    "a list": ("- batch_size\n", ["holds a list"]),
    "a word": ("batch_size\n", ["holds a str"]),
    "not YAML": ("batch_size: [8\n", ["is not valid YAML"]),
    "not text": (b"\xff\xfe\x00", ["is text in utf-16"]),
}


@pytest.mark.parametrize("name", YAML)
def test_bad_config_file(name, base, data, tmp_path):
    content, words = YAML[name]
    file = tmp_path / "run.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = runs.finetune(base, "classification", data, tmp_path / "out", "--config", file)
    done.refused(*words)
    assert runs.listing(tmp_path) == {"run.yaml"}


def test_a_config_file_that_is_not_there(base, data, tmp_path):
    done = runs.finetune(base, "classification", data, tmp_path / "out", "--config", tmp_path / "no.yaml")
    done.refused("no config file at")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_artifact_is_never_replaced(overwrite, base, data, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letters.txt").write_text("dear")
    more = ["--overwrite"] if overwrite else []
    done = runs.finetune(base, "classification", data, tmp_path / "out", *more)
    done.refused("out` exists and is no artifact", "choose another `--out`")
    done = runs.finetune(base, "classification", data, tmp_path / "out" / "letters.txt", *more)
    done.refused("letters.txt` exists and is no artifact", "choose another `--out`")
    assert runs.listing(tmp_path) == {"out", "out/letters.txt"}


def test_a_place_that_cannot_be_written(base, data, tmp_path):
    (tmp_path / "file").write_text("")
    runs.finetune(base, "classification", data, tmp_path / "file" / "out").refused("cannot be written: not a directory")
    runs.finetune(base, "classification", data, "/proc/out").refused("`/proc/out` cannot be written")
    assert runs.listing(tmp_path) == {"file"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_without_permission(base, data, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    done = runs.finetune(base, "classification", data, tmp_path / "locked" / "out")
    done.refused("cannot be written: permission denied")


@pytest.mark.slow
def test_the_same_from_a_shell(base, data, tmp_path):
    """The real command, for what only a process of its own shows: warnings of libraries and the exit code."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.tsv").write_bytes(GOOD.encode() + b"caf\xe9\tyes\n")
    (tmp_path / "data" / "dev.tsv").write_text(GOOD)
    before = runs.listing(tmp_path)
    flags = ["--model", str(base), "--task", "classification", "--data", "data", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-c", "from slimformer.cli import main; main()", "finetune", *flags],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    runs.Done(done.returncode, done.stdout, done.stderr).refused("UTF-8")
    assert runs.listing(tmp_path) == before


def test_labels_that_cannot_be_written_are_found_before_training(tmp_path):
    """Folders of images may have names that are no text, and a label is the name of its folder."""
    viewer = runs.viewer(tmp_path / "viewer")
    for split in ("train", "dev"):
        for label in (os.fsdecode(b"caf\xe9"), "bar"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            Image.new("RGB", (28, 28)).save(folder / "0.png")
    before = runs.listing(tmp_path)
    done = runs.finetune(viewer, "image-classification", tmp_path / "images", tmp_path / "out")
    done.refused("utf-8")  # one line: no step was taken
    assert runs.listing(tmp_path) == before


QUANTIZE = {
    "a block that is not there": (["--distil-layers", "99"], ["there is no block 99"]),
    "a term for such a block": (["--terms", "hidden[7]:1"], ["there is no block 7"]),
    "a term without inputs": (["--terms", "mlm:1"], ["term `mlm` learns from masked inputs"]),
    "nothing to balance": (["--terms", "attention-maps:1", "--balance", "auto"], ["name two of them"]),
    "a group beyond any row": (
        ["--granularity", "group", "--group-size", "65"],
        ["`--group-size` is 65, and the longest row has 64 weights"],
    ),
}


@pytest.mark.parametrize("name", QUANTIZE)
@pytest.mark.parametrize("start", ["base", "artifact"])
def test_what_cannot_be_quantized_is_found_before_a_teacher_is_trained(name, start, data, tmp_path, request):
    flags, words = QUANTIZE[name]
    model = request.getfixturevalue(start)  # without a head, so that it would be fine-tuned first; or with one
    given = ["--model", model, "--task", "classification", "--data", data, "--out", tmp_path / "out"]
    runs.run("quantize", *given, "--max-steps", 2, *flags).refused(*words)
    assert not runs.listing(tmp_path)


REPORTS = {
    "a folder": ("{place}", "a folder; give a file"),
    "below a file": ("{place}/file/report.html", "cannot be written: not a directory"),
    "where nothing can be made": ("/proc/report.html", "cannot be written"),
    "a long name": ("{place}/" + "x" * 250, "file name too long"),
    "somebody else's": ("{place}/file", "is no report as slimformer wrote it"),
    "in the result": ("{place}/out/report.html", "inside the result"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_that_cannot_be_written_is_found_before_training(name, base, data, tmp_path):
    path, words = REPORTS[name]
    (tmp_path / "file").write_text("mine")
    given = ["--teacher", base, "--corpus", data / "train.tsv", "--text-column", "text", "--layers", 1]
    out = ["--out", tmp_path / "out", "--report", path.format(place=tmp_path)]
    runs.run("distill", *given, *out, "--max-steps", 2, "--batch-size", 8).refused(words)
    assert (tmp_path / "file").read_text() == "mine"
    assert runs.listing(tmp_path) == {"file"}


@pytest.mark.parametrize("size", [0, 300, 5_000, 60_000])
def test_a_disk_that_is_full_leaves_nothing_and_is_told_in_one_line(size, base, data, tmp_path, temporary):
    """Whether it is the mark of the folder, the settings, a checkpoint or the result that cannot be written."""
    with files_of_at_most(size):
        done = runs.finetune(base, "classification", data, tmp_path / "deep" / "out", "--quiet", "--save-every", 1)
    done.refused("no space to write in `", "out.training` (", "free some space")
    assert not runs.listing(tmp_path)
    assert not runs.listing(temporary)
