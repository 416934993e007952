"""Models asked on the native engine, by the commands and functions that ask any model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from slimformer.inference.pipeline import open_pipeline
from slimformer.runtime.native import is_built
from tests import runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler"),
]

TEXTS = ["a lovely film", "dull, awful and far too long for what it has to say", "so", "great great great"]


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    rows = [("a lovely evening", "good"), ("an awful evening", "bad"), ("great fun", "good"), ("dull stuff", "bad")]
    for split in ("train", "dev"):
        lines = ["text\tlabel", *(f"{text} {split} {n}\t{label}" for n in range(6) for text, label in rows)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    base = runs.reader(folder / "base")
    assert runs.finetune(base, "classification", folder, folder / "float", "--max-steps", 4, "--quiet").code == 0
    learn = ("--task", "classification", "--data", folder, "--max-steps", 4, "--quiet")
    for method, start, out in (
        ("quantize", "float", "ternary"),
        ("mask", "base", "mask"),
        ("elastic", "float", "elastic"),
    ):
        more = ("--blocks", "0-") if method == "mask" else ()
        done = runs.run(method, "--model", folder / start, *learn, *more, "--out", folder / out)
        assert done.code == 0, done.err
    done = runs.run("extract", folder / "elastic", "--allocation", "S,XL", "--out", folder / "mixture")
    assert done.code == 0, done.err
    return folder


def answers(room, *more, model="ternary"):
    done = runs.run("predict", room / model, *TEXTS, "--json", *more)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_answers_are_those_of_torch(room):
    for one, other in zip(answers(room, "--engine", "native"), answers(room, "--engine", "torch"), strict=True):
        assert one["label"] == other["label"]
        assert one["scores"] == pytest.approx(other["scores"], abs=0.01)


@pytest.mark.parametrize(
    ("model", "more"),
    [("float", ()), ("mask", ()), ("elastic", ()), ("elastic", ("--size", "S")), ("mixture", ())],
)
def test_models_of_all_methods_answer_as_in_torch(room, model, more):
    native = answers(room, "--engine", "native", *more, model=model)
    for one, other in zip(native, answers(room, *more, model=model), strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-6)


@pytest.mark.parametrize("model", ["ternary", "float"])
def test_batch_mates_change_no_digit(room, model):
    together = answers(room, "--engine", "native", model=model)
    assert together == answers(room, "--engine", "native", "--batch-size", 1, model=model)


def test_evaluate_counts_what_predict_says(room):
    done = runs.run("evaluate", room / "ternary", "--data", room, "--engine", "native", "--json")
    lines = [line.rsplit("\t", 1) for line in (room / "dev.tsv").read_text().splitlines()[1:]]
    pipeline = open_pipeline(room / "ternary", engine="native")
    right = [
        answer["label"] == label for answer, (_, label) in zip(pipeline([t for t, _ in lines]), lines, strict=True)
    ]
    assert done.json["metrics"]["accuracy"] == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        (["predict", "ternary", "so", "--engine", "sse"], ("`--engine` is `sse`", "torch or native"), 2),
        (
            ["predict", "ternary", "so", "--engine", "native", "--size", "S"],
            ("`--size` is `S`", "leave one out"),
            2,
        ),
        (["predict", "ternary", "so", "--engine", "native", "--task", "retrieval"], ("needs `last_hidden_state`",), 1),
        (["evaluate", "ternary", "--engine", "native", "--route", "r.json"], ("`--engine` and `--route`",), 2),
        (["evaluate", "ternary", "--engine", "native", "--lm-eval", "arc_easy"], ("`--engine` is given",), 2),
    ],
)
def test_what_cannot_be_is_refused(room, command, words, code):
    first, model, *rest = command
    runs.run(first, room / model, *rest).refused(*words, code=code)


def test_inspect_says_what_computes_and_what_runs(room):
    done = runs.run("inspect", "--runtime", room / "ternary", "--json").json
    assert done["runs"]
    assert done["instruction_set"] == done["available"][0]
    assert "the native engine runs" in runs.run("inspect", room / "mask", "--runtime").out
    assert "the native engine runs" in runs.run("inspect", "--runtime", runs.decoder(room / "decoder")).out
    hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)).save_pretrained(room / "gpt2")
    refused = runs.run("inspect", "--runtime", room / "gpt2")
    assert "the engine does not run `gpt2`" in refused.out
    runs.run("inspect").refused("no model is given", code=2)


def test_images_are_answered_as_in_torch(tmp_path):
    folder = runs.viewer(tmp_path / "viewer")
    config = hf.AutoConfig.from_pretrained(folder)
    config.num_labels = 3
    torch.manual_seed(0)
    hf.ViTForImageClassification(config).save_pretrained(folder)
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    one, other = (
        open_pipeline(folder, task="image-classification", engine=engine)([tmp_path / "image.png"])[0]["scores"]
        for engine in ("native", "torch")
    )
    assert one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("size", [None, "S", "M"])
def test_decoders_go_on_with_texts_as_in_torch(tmp_path, size):
    folder = runs.decoder(tmp_path / "decoder") if size is None else runs.elastic_decoder(tmp_path / "elastic")
    more = () if size is None else ("--size", size)
    command = ("predict", folder, *TEXTS, "--max-new-tokens", 12, *more)
    native, torch_ = (runs.run(*command, "--engine", engine) for engine in ("native", "torch"))
    assert native.code == torch_.code == 0, native.err
    assert native.out == torch_.out
    assert runs.run(*command, "--engine", "native", "--batch-size", 1).out == native.out


def test_the_engine_goes_on_with_texts_and_does_not_evaluate_decoders(room):
    folder = runs.decoder(room / "writer")
    (room / "lines").mkdir()
    (room / "lines" / "dev.txt").write_text("\n".join(TEXTS) + "\n")
    command = ("evaluate", folder, "--task", "language-modelling", "--data", room / "lines", "--engine", "native")
    runs.run(*command).refused("goes on with texts", "leave out `--engine`", code=1)
