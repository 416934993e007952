"""`slimformer predict`: any model, any file, one answer for each line."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys

import pytest

from slimformer.artifact import read_manifest
from tests import corpus, runs
from tests.conftest import ROOT


def replies(done):
    return [json.loads(line) for line in done.out.splitlines()]


def test_texts_on_the_command_line(artifact):
    done = runs.run("predict", artifact, "the film was good", "a dull plot", "--json")
    assert done.code == 0
    assert done.err == ""
    assert [set(reply) for reply in replies(done)] == [{"label", "probability", "scores"}] * 2
    people = runs.run("predict", artifact, "the film was good").out
    first = replies(done)[0]
    assert people.startswith(f"{first['label']} {first['probability']:.4f}, ")
    assert people.count("\n") == 1


def test_a_file_of_texts(artifact, tmp_path):
    texts = [" ".join(random.Random(number).choices(corpus.WORDS, k=1 + number % 9)) for number in range(70)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    found = replies(runs.run("predict", artifact, "--file", tmp_path / "texts.txt", "--json", "--batch-size", 4))
    expected = replies(runs.run("predict", artifact, *texts, "--json"))
    assert [reply["label"] for reply in found] == [reply["label"] for reply in expected]
    assert [reply["probability"] for reply in found] == pytest.approx([each["probability"] for each in expected])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.jsonl", '{"text": "the film"}\n{"text": "the film", "text_pair": "was good"}\n'),
        ("r.csv", 'text,text_pair\n"the film",\n"the film",was good\n'),
        ("r.tsv", "sentence1\tsentence2\nthe film\t\nthe film\twas good\n"),
    ],
)
def test_files_of_pairs(name, content, artifact, tmp_path):
    (tmp_path / name).write_text(content)
    done = runs.run("predict", artifact, "--file", tmp_path / name, "--json")
    if name == "r.jsonl":
        assert [set(reply) for reply in replies(done)] == [{"label", "probability", "scores"}] * 2
    else:  # an empty cell is an empty text, not a missing one
        assert replies(done)[0] == {
            "line": 2,
            "error": "the text_pair of a request is empty; give a text, a pair of texts, or "
            '{"text": …, "text_pair": …}',
        }
        assert set(replies(done)[1]) == {"label", "probability", "scores"}


def test_bad_lines_are_told_in_their_places(artifact, tmp_path):
    (tmp_path / "r.jsonl").write_bytes(b'{"text": "good"}\nno json\n{"label": 3}\n\xff\n{"text": "bad"}\n')
    done = runs.run("predict", artifact, "--file", tmp_path / "r.jsonl", "--json")
    assert done.code == 1
    found = replies(done)
    assert [reply.get("line") for reply in found] == [None, 2, 3, 4, None]
    assert [set(found[place]) for place in (0, 4)] == [{"label", "probability", "scores"}] * 2
    assert "not valid JSON" in found[1]["error"]
    assert "a request for classification reads" in found[2]["error"]
    assert "not UTF-8: byte `0xff`" in found[3]["error"]
    assert done.err == "error: 3 of 5 requests could not be answered; see what was said of each\n"
    people = runs.run("predict", artifact, "--file", tmp_path / "r.jsonl")
    assert people.code == 1
    assert people.out.count("\n") == 2
    assert people.err.startswith("error: line 2: not valid JSON")
    assert people.err.count("\n") == 4


@pytest.mark.slow
def test_standard_input(artifact):
    command = runs.in_a_process("predict", artifact, "--file", "-", "--json")
    done = subprocess.run(command, input="the film\n\ngood\n", capture_output=True, text=True)
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [("error" in line) for line in lines] == [False, True, False]
    assert lines[1]["line"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--batch-size", "1"), ("--batch-size", "2", "--json")])
def test_standard_input_is_answered_while_more_is_awaited(artifact, flags):
    """Whoever writes a batch and waits gets its answers before the end of the input."""
    command = runs.in_a_process("predict", artifact, "--file", "-", *flags)
    asked = int(flags[1])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(2):
            process.stdin.write("the film was good\n" * asked)
            process.stdin.flush()
            answers = [process.stdout.readline() for _ in range(asked)]
            assert all(line.strip() for line in answers)
            assert process.poll() is None
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no terminal of this kind")
def test_a_terminal_is_answered_line_by_line(artifact):
    import pty

    ours, theirs = pty.openpty()
    command = runs.in_a_process("predict", artifact, "--file", "-")
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        os.write(ours, b"the film was good\n")
        assert process.stdout.readline().strip()
        assert process.poll() is None
        os.write(ours, b"\x04")  # the end of the input
        assert process.wait() == 0
    os.close(ours)


@pytest.mark.parametrize("name", ["r.txt.gz", "r.jsonl"])
def test_what_is_broken_in_a_file_is_an_object_among_the_answers(name, artifact, tmp_path):
    content = b'{"text": "good"}\n{"text": "\\ud800"}\n{"\\udfff": "good"}\n' + b'{"text": "bad"}\n' * 3
    if name.endswith(".gz"):
        content = gzip.compress(b"".join(b"good film %d\n" % n for n in range(3000)))[:-900]
    (tmp_path / name).write_bytes(content)
    done = runs.run("predict", artifact, "--file", tmp_path / name, "--json")
    assert done.code == 1
    found = replies(done)
    errors = {reply["line"]: reply["error"] for reply in found if "error" in reply}
    if name.endswith(".gz"):
        assert list(errors) == [len(found)]
        assert "cannot be read from here on" in errors[len(found)]
    else:
        assert list(errors) == [2, 3]
        assert all("holds half of a character" in error for error in errors.values())
        assert len(found) == 6
    assert done.err.startswith(f"error: {len(errors)} of {len(found)} requests could not be answered")


def test_paths_of_images_that_cannot_be(tmp_path):
    viewer = runs.viewer(tmp_path / "viewer")
    (tmp_path / "paths.txt").write_text(
        "\n".join(["x" * 5000, "/".join(["y" * 200] * 40), "~nobody/x.png", "a\0b"]) + "\n"
    )
    done = runs.run("predict", viewer, "--file", tmp_path / "paths.txt", "--json")
    assert done.code == 1
    found = replies(done)
    assert [reply["line"] for reply in found] == [1, 2, 3, 4]
    assert all(reply["error"].startswith("no image at `") for reply in found)
    assert max(len(reply["error"]) for reply in found) < 300
    assert "unexpected" not in done.err


def test_usage(artifact, tmp_path):
    runs.run("predict", artifact).refused("nothing is asked; give texts, or `--file FILE`", code=2)
    runs.run("predict", artifact, "good", "--file", "x").refused("texts and `--file` are given", code=2)
    runs.run("predict", artifact, "--file", tmp_path / "none.txt").refused("no file at")
    runs.run("predict", tmp_path / "nowhere", "good").refused("no folder at")
    runs.run("predict", artifact, "good", "--task", "poetry").refused("task `poetry` is not known")
    assert "leaves no room for text" in runs.run("predict", artifact, "good", "--max-length", "1").err
    runs.run("predict", artifact, "good", "--max-length", "65").refused("the model has 64 positions")
    runs.run("predict", artifact, "good", "--base", tmp_path).refused("is no mask and needs none")


def test_a_mask_whose_base_has_moved(base, data, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    flags = ["--blocks", "0-", "--max-steps", 1, "--batch-size", 8, "--quiet"]
    mask = ["mask", "--model", tmp_path / "base", "--task", "classification", "--data", data, "--out", tmp_path / "out"]
    assert runs.run(*mask, *flags).code == 0
    expected = runs.run("predict", tmp_path / "out", "the film was good", "--json").out
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    moved = runs.run("predict", tmp_path / "out", "the film was good", "--json", "--base", tmp_path / "elsewhere")
    assert moved.out == expected


def test_a_changed_artifact_is_refused(artifact, tmp_path):
    copy = shutil.copytree(artifact, tmp_path / "copy")
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    runs.run("predict", copy, "good").refused("model.safetensors")


@pytest.mark.parametrize(
    "name",
    sorted(path.name for path in (ROOT / "tests" / "artifacts").iterdir() if (path / "slimformer.json").is_file()),
)
def test_every_artifact_kept_for_good_answers(name, tmp_path):
    from PIL import Image

    folder = ROOT / "tests" / "artifacts" / name
    Image.new("RGB", (9, 9)).save(tmp_path / "image.png")
    task = read_manifest(folder).task
    asked = {
        "multiple-choice": '{"question": "the end", "choices": ["good", "bad"]}',
        "question-answering": '{"question": "the end", "context": "the end was good"}',
        "image-classification": str(tmp_path / "image.png"),
    }.get("" if task is None else task.kind, "the film was good")
    done = runs.run("predict", folder, asked, "--json")
    assert done.code == 0, (done.err, done.out)
    (reply,) = replies(done)
    keys = {
        None: {"embedding"},
        "classification": {"label", "probability", "scores"},
        "image-classification": {"label", "probability", "scores"},
        "regression": {"value"},
        "tagging": {"tokens", "tags"},
        "multiple-choice": {"index", "choice", "probability", "scores"},
        "question-answering": {"text", "start", "end", "score"},
        "language-modelling": {"text"},
    }
    assert set(reply) == keys[None if task is None else task.kind]


#: Answers a file and says how much memory it took beyond what the opened model takes.
MEASURED = """
import sys
import slimformer.inference.pipeline as pipeline
from slimformer.cli import main

def resident(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

opening = pipeline.open_pipeline

def opened(*given, **named):
    found = opening(*given, **named)
    found(["the film was good"] * 600)
    opened.before = resident("VmRSS")
    return found

pipeline.open_pipeline = opened
main(["predict", sys.argv[1], "--file", sys.argv[2], "--json"])
sys.stderr.write(str(resident("VmHWM") - opened.before))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_file(artifact, tmp_path):
    """Four times the lines take the same memory; all answers of the larger file together would take far more."""
    grown = []
    for lines in (2_000, 8_000):
        path = tmp_path / f"{lines}.txt"
        path.write_text("the film was very good and the plot was not bad\n" * lines)
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(artifact), str(path)], capture_output=True, text=True, check=True
        )
        assert done.stdout.count("\n") == lines
        grown.append(int(done.stderr))
    assert grown[1] < 50_000  # kilobytes
    assert abs(grown[1] - grown[0]) < 10_000
