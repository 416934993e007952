"""The demo, cut to two steps: the whole path on the real model and the real reviews."""

from __future__ import annotations

import json

import pytest

from slimformer.artifact import verify
from slimformer.demo import SETTINGS, Demo, run_demo
from slimformer.demo.reviews import DEV_BELOW, read_reviews, write_reviews
from slimformer.errors import DataError, SlimformerError
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.registry import METHODS
from slimformer.tasks.options import TaskOptions
from tests import runs


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_the_split_is_fixed_and_nothing_is_on_both_sides(tmp_path):
    write_reviews(tmp_path, read_reviews())
    train, dev = lines(tmp_path / "train.jsonl"), lines(tmp_path / "dev.jsonl")
    assert (len(train), len(dev)) == (7716, 814)
    assert not {row["text"] for row in train} & {row["text"] for row in dev}
    assert {row["label"] for row in dev} == {"positive", "negative"}
    assert len(dev) / 8530 == pytest.approx(DEV_BELOW / 256, abs=0.02)


@pytest.mark.parametrize(
    "name", ["data/train.jsonl", "data/notes.txt", "report.html", "mask/notes.txt", "trim", "letter.txt"]
)
def test_a_folder_with_something_of_the_user_in_the_way_is_left_alone(name, tmp_path):
    path = tmp_path / "demo" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    before = runs.listing(tmp_path)
    with pytest.raises(SlimformerError, match="which no demo made, so it is left alone"):
        run_demo(tmp_path / "demo", quiet=True)
    assert runs.listing(tmp_path) == before
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report.html", "is no report as slimformer wrote it"),
        ("mask/notes.txt", "mask` exists and is no artifact"),
        ("quantize.training/settings.json", r"quantize\.training` .* was made by no run"),
    ],
)
def test_a_second_demo_replaces_only_what_the_first_made(name, words, tmp_path):
    Demo(tmp_path, SETTINGS).claim()
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(SlimformerError, match=words):
        run_demo(tmp_path, quiet=True)
    assert path.read_text() == "mine"
    assert not (tmp_path / "data").exists()


def test_reviews_are_not_written_over_other_data(tmp_path):
    reviews = {"train": ["{}"], "dev": ["{}", "{}"]}
    for _ in range(2):
        write_reviews(tmp_path, reviews)
    (tmp_path / "dev.jsonl").write_text("mine")
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"dev\.jsonl` does not hold the demo's reviews"):
        write_reviews(tmp_path, reviews)
    assert runs.listing(tmp_path) == {"dev.jsonl"}


@pytest.mark.slow
def test_rows_report_and_artifacts(tmp_path, capsys):
    said = []
    for quiet in (True, False):  # a second demo replaces the first, and nothing that was put beside it since
        rows, report = run_demo(tmp_path / "demo", quiet=quiet, max_steps=2, eval_every=1, log_every=1, limit=24)
        (tmp_path / "demo" / "notes.txt").write_text("mine")
        said.append(capsys.readouterr().err.splitlines())
    methods = ("finetune", "distill", "finetune", "mask", "quantize", "elastic", "adapt", "finetune", "trim")
    titles = [METHODS.help(name).rstrip(".") for name in methods]
    assert [[line for line in run if line in titles] for run in said] == [[], titles]
    assert [row.name for row in rows] == [
        "MiniLM, fine-tuned",
        "3 x 192, distilled, fine-tuned",
        "MiniLM, one bit per weight",
        "MiniLM, ternary",
        "MiniLM, elastic, size S",
        "MiniLM, elastic, size XL",
        "MiniLM, adapted, fine-tuned",
        "MiniLM, fine-tuned, trimmed",
    ]
    assert rows[0].parameters == 22_713_986
    assert rows[0].bytes == (tmp_path / "demo" / "finetune" / "model.safetensors").stat().st_size
    # Every row says what the artifact it names scores on the reviews of the demo, measured anew.
    measured = [(name, None) for name in ("finetune", "distill-finetuned", "mask", "quantize")]
    measured += [("elastic", "S"), ("elastic", "XL"), ("adapt-finetuned", None), ("trim", None)]
    options = TaskOptions(task="classification", data=str(tmp_path / "demo" / "data"), limit=24)
    for row, (name, size) in zip(rows, measured, strict=True):
        score = evaluate_on_task(tmp_path / "demo" / name, options, size=size)["metrics"]["accuracy"]
        assert row.accuracy == pytest.approx(score, abs=1 / 24), name  # on the engine, sums have another order
    page = report.read_text(encoding="utf-8")
    for row in rows:
        assert row.name in page
    assert "taking turns on the native engine" in page
    assert page.count("<svg") == 7  # accuracy over costs, and losses: trim trains nothing
    made = [
        "finetune",
        "distill",
        "distill-finetuned",
        "mask",
        "quantize",
        "elastic",
        "adapt",
        "adapt-finetuned",
        "trim",
    ]
    for name in made:
        verify(tmp_path / "demo" / name)
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == sorted(
        ["data", "demo.json", *made, "adapt.warmup", "adapt.round-0", "notes.txt", "report.html"]
    )
    assert (tmp_path / "demo" / "notes.txt").read_text() == "mine"
