"""Nothing of the user's is touched by any command: canaries around every result and in the way of every run."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from slimformer.registry import METHODS
from tests import runs
from tests.cli.test_bad_input_table import time_limit
from tests.parameters import slow

if TYPE_CHECKING:
    from pathlib import Path

#: Files of the user whose names are like those that commands use for a while.
CANARIES = (
    "notes.txt",
    "out.txt",
    "out.tmp",
    "out.training.bak/checkpoint-1/weights.safetensors",
    "training/settings.json",
    "checkpoint-1/sealed.json",
    "best.safetensors",
    "settings.json",
    "corpus.jsonl",
    "stage/config.json",
    ".out.tmp-01234567/thesis.txt",
    ".out.old-01234567/thesis.txt",
    ".out.old-76543210/slimformer.json",
    ".out.training.tmp-01234567/thesis.txt",
    ".out.onnx.tmp-01234567/thesis.txt",
    ".report.html.tmp-01234567/thesis.txt",
)
TASK = ["--model", "{base}", "--task", "classification", "--data", "{data}", "--max-steps", 2]
METHOD_COMMANDS = {
    "finetune": [*TASK, "--save-every", 1],
    "mask": [*TASK, "--save-every", 1, "--blocks", "0-1"],
    "quantize": TASK,
    "elastic": [*TASK, "--save-every", 1],
    "distill": [
        "--teacher", "{base}", "--corpus", "{data}/train.tsv", "--text-column", "text", "--layers", 1, "--max-steps", 2,
        "--batch-size", 8, "--max-length", 16, "--report", "report.html", "--then-task", "classification",
        "--data", "{data}", "--finetune-steps", 2, "--teacher-layer", "auto", "--probe-steps", 1,
        "--teacher-cache", "cache",
    ],
    "adapt": [
        "--model", "{pieces}/model", "--corpus", "{pieces}/text.txt", "--new-tokens", 2, "--max-steps", 2,
        "--head-steps", 1, "--batch-size", 8, "--max-length", 16, "--save-every", 1, "--teacher-cache", "cache",
        "--then-task", "classification", "--data", "{data}", "--finetune-steps", 2,
    ],
    "extend": ["--model", "{pieces}/model", "--corpus", "{pieces}/text.txt", "--new-tokens", 2],
    "trim": ["--model", "{artifact}", "--corpus", "{data}/train.tsv", "--text-column", "text"],
}  # fmt: skip
COMMANDS = {
    "export": ["{artifact}", "--out", "out.onnx"],
    "evaluate": ["{artifact}", "--data", "{data}"],
    "compare": ["{artifact}", "--data", "{data}", "--timed", 2],
    "predict": ["{artifact}", "the film was good"],
    "bench": ["{artifact}", "--length", 8, "--seconds", 0],
    "verify": ["{artifact}"],
    "inspect": ["{artifact}"],
}


@pytest.fixture
def fill(base, data, artifact, pieces):
    places = {"base": base, "data": data, "artifact": artifact, "pieces": pieces}
    return lambda flags: [str(flag).format(**places) for flag in flags]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A working directory full of canaries, one of them outside, behind links."""
    folder = tmp_path / "place"
    for name in CANARIES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"mine: {name}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "letters.txt").write_text("mine")
    (folder / ".out.tmp-00000000").symlink_to(tmp_path / "elsewhere")
    (folder / ".out.old-00000000").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(folder)
    return folder


def snapshot(folder: Path) -> dict[str, object]:
    """What there is below a folder: files by content and time, links by where they lead."""
    there: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            there[name] = path.readlink()
        else:
            kind = "folder" if path.is_dir() else "neither"
            there[name] = (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else kind
    return there


def new(before: dict[str, object], folder: Path) -> set[str]:
    """Check that everything is as it was, and return what was added at the top."""
    after = snapshot(folder)
    assert {name: after.get(name) for name in before} == before
    return {name for name in after.keys() - before.keys() if name.count("/") == 1}


@pytest.mark.parametrize("name", slow(METHODS, only=["distill"]))
def test_methods_add_their_results_and_touch_nothing_else(name, place, fill):
    before = snapshot(place.parent)
    assert runs.run(name, *fill(METHOD_COMMANDS[name]), "--out", "out", "--quiet").code == 0
    beside = {
        "quantize": {"out.finetuned"},
        "distill": {"out-classification", "report.html", "cache"},
        "adapt": {"out.vocabulary", "out.warmup", "out.round-0", "out-classification", "cache"},
    }
    assert new(before, place.parent) == {f"place/{each}" for each in {"out"} | beside.get(name, set())}


@pytest.mark.parametrize("name", slow(METHODS, only=["finetune"]))
def test_a_dry_run_writes_nothing(name, place, fill, temporary):
    before = snapshot(place.parent)
    plan = runs.run(name, *fill(METHOD_COMMANDS[name]), "--out", "out", "--dry-run", "--json").json
    after = snapshot(place.parent)
    assert after == before
    assert not list(temporary.iterdir())
    assert plan["dry_run"]
    assert plan["parameters"] > 0
    trains = name not in ("trim", "extend") and plan["method"] not in ("trim", "extend")
    assert (plan["steps"] > 0) == (plan["step_seconds"] > 0) == trains


@pytest.mark.parametrize("name", slow(COMMANDS, only=["export"]))
def test_other_commands_touch_nothing(name, place, fill):
    before = snapshot(place.parent)
    assert runs.run(name, *fill(COMMANDS[name])).code == 0
    assert new(before, place.parent) == ({"place/out.onnx"} if name == "export" else set())


@pytest.mark.slow
def test_merging_touches_nothing_else(place, fill):
    assert runs.run("mask", *fill(METHOD_COMMANDS["mask"]), "--out", "bits", "--quiet").code == 0
    before = snapshot(place.parent)
    assert runs.run("merge", "bits", "--out", "out").code == 0
    assert new(before, place.parent) == {"place/out"}


@pytest.mark.parametrize("name", list(METHODS))
def test_what_is_in_the_way_of_a_method_is_named_and_stays(name, place, fill):
    """A folder or a link where checkpoints would go, the same for what runs first, and a result with notes in it."""
    beside = {
        "quantize": [".finetuned"],
        "distill": ["-classification"],
        "adapt": [".vocabulary", ".warmup", ".round-0", "-classification"],
    }
    for suffix in ["", *beside.get(name, [])]:
        training = place / f"out{suffix}.training"
        training.mkdir()
        (training / "settings.json").write_text("{}")
        refused(name, place, fill, f"out{suffix}.training` is needed for checkpoints and was made by no run")
        (training / "settings.json").unlink()
        training.rmdir()
        training.symlink_to(place.parent / "elsewhere")
        refused(name, place, fill, f"out{suffix}.training` is a link")
        training.unlink()


@pytest.mark.parametrize("name", list(METHODS))
def test_a_result_with_something_else_in_it_is_not_replaced(name, place, fill, artifact):

    shutil.copytree(artifact, place / "out")
    (place / "out" / "notes.txt").write_text("mine")
    refused(name, place, fill, "`out` is not replaced", "`notes.txt` is none of its files")
    (place / "out" / "notes.txt").unlink()
    (place / "out" / "README.md").write_text("my own words")
    refused(name, place, fill, "`out` is not replaced", "`README.md` was changed")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "finetune"])
def test_no_method_but_fine_tuning_replaces_what_it_starts_from(name, tmp_path, artifact, data):
    model = shutil.copytree(artifact, tmp_path / "model")
    method = METHODS.get(name)
    material = {"task": ["--task", "classification", "--data", data], "corpus": ["--corpus", data]}
    more = {"distill": ["--layers", 1], "extend": ["--new-tokens", 1]}.get(name, [])
    flags = [f"--{method.starts_from}", model, "--out", model, *material[method.learns_from], *more]
    before = snapshot(tmp_path)
    runs.run(name, *flags, "--overwrite").refused(f"`--{method.starts_from}` names and the result does not replace")
    assert new(before, tmp_path) == set()


def test_a_base_is_not_replaced_by_the_teacher_that_is_made_of_it(tmp_path, pieces, data):
    """The one that `quantize` fine-tunes first, beside its result."""
    flags = ["--model", pieces / "model", "--corpus", pieces / "text.txt", "--new-tokens", 2]
    assert runs.run("extend", *flags, "--out", tmp_path / "out.finetuned").code == 0
    before = snapshot(tmp_path)
    flags = ["--model", tmp_path / "out.finetuned", "--task", "classification", "--data", data, "--max-steps", 2]
    done = runs.run("quantize", *flags, "--out", tmp_path / "out", "--overwrite", "--quiet")
    done.refused("which `--model` names and the result does not replace")
    assert new(before, tmp_path) == set()


def make(kind: str, path: Path, artifact: Path) -> None:
    """Put something where a command would write: what a user may have there, by accident or on purpose."""
    makers = {
        "a file": lambda: path.write_text("mine"),
        "a pipe": lambda: os.mkfifo(path),
        "a link to nothing": lambda: path.symlink_to("nowhere"),
        "a link to itself": lambda: path.symlink_to(path.name),
        "a link to a file": lambda: path.symlink_to("notes.txt"),
        "a folder of mine": lambda: (path.mkdir(), (path / "notes.txt").write_text("mine")),
        "a manifest that is a pipe": lambda: (path.mkdir(), os.mkfifo(path / "slimformer.json")),
        "a linked artifact's manifest": lambda: (
            path.mkdir(),
            (path / "slimformer.json").symlink_to(artifact / "slimformer.json"),
        ),
    }
    makers[kind]()


KINDS = (
    "a file",
    "a pipe",
    "a link to nothing",
    "a link to itself",
    "a link to a file",
    "a folder of mine",
    "a manifest that is a pipe",
    "a linked artifact's manifest",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["finetune", "distill", "export", "merge", "unpack", "demo"])
def test_what_lies_where_a_result_would_go_stays(name, kind, place, fill, artifact):
    """Whatever it is, no command hangs, writes through it or replaces it, `--overwrite` or not."""
    make(kind, place / "out", artifact)
    command = ["{artifact}"] if name in ("merge", "unpack", "export") else METHOD_COMMANDS.get(name, [])
    with time_limit(60):
        for more in ([],) if name == "demo" else ([], ["--overwrite"]):
            before = snapshot(place.parent)
            runs.run(name, *fill(command), "--out", "out", *more).refused()
            assert new(before, place.parent) == set()


@pytest.mark.parametrize("kind", KINDS[:5])
@pytest.mark.parametrize("flag", ["--report", "--teacher-cache", "--tensorboard"])
def test_what_lies_where_a_run_would_write_besides_stays(flag, kind, place, fill, artifact):
    make(kind, place / "written", artifact)
    for written in ("written", "{artifact}/written", "out/written", "out.training/written", "s3://bucket/written"):
        before = snapshot(place.parent)
        flags = [*METHOD_COMMANDS["distill"], "--out", "out", "--quiet", flag, written]
        for other in ("--report", "--teacher-cache"):
            if other != flag or METHOD_COMMANDS["distill"].count(other):
                at = flags.index(other)
                del flags[at : at + 2]
        with time_limit(60):
            runs.run("distill", *fill(flags)).refused()
        assert new(before, place.parent) == set()


def refused(name: str, place: Path, fill, *words: str) -> None:
    for more in ([], ["--resume"]) if "training" in words[0] else ([],):
        before = snapshot(place.parent)
        done = runs.run(name, *fill(METHOD_COMMANDS[name]), "--out", "out", "--quiet", "--overwrite", *more)
        done.refused(*words)
        assert new(before, place.parent) == set()
