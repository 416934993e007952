"""`quantize --post-training` from end to end: no labels, the head stays, and the file is like any packed one."""

from __future__ import annotations

import gzip

import pytest
import torch
import transformers as hf

import slimformer
from slimformer import Anatomy, artifact, quantize
from slimformer.errors import CheckpointError, ConfigError, DataError
from slimformer.methods.quantize import QuantizeConfig
from slimformer.methods.quantize.post_training.calibration import Walk, batches_of
from slimformer.methods.quantize.post_training.rounding import round_model
from slimformer.objectives import TermObjective
from slimformer.views import packed_weights, rounding_of
from tests import corpus, runs, zoo

#: Families that do something between their blocks.
UNLIKE = {"deberta-v2"}
TEXTS = {"post_training": True, "quiet": True, "calibration": 32}


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A fine-tuned model and the texts it was trained on, without their labels."""
    folder = tmp_path_factory.mktemp("post-training")
    corpus.model_folder(folder / "base")
    data = corpus.data_folder(folder / "data", train=200)
    settings = {"epochs": 6, "batch_size": 16, "lr": 3e-3, "quiet": True}
    slimformer.finetune(model=folder / "base", task="classification", data=data, out=folder / "tuned", **settings)
    lines = (data / "train.tsv").read_text().splitlines()[1:]
    (folder / "texts.txt").write_text("".join(line.partition("\t")[0] + "\n" for line in lines))
    return folder


def run(room, out=None, **settings):
    given = {"model": room / "tuned", "corpus": str(room / "texts.txt"), "out": out, **TEXTS, **settings}
    return quantize(**{name: value for name, value in given.items() if value is not None})


@pytest.mark.parametrize("weights", ["int8", pytest.param("int4", marks=pytest.mark.slow)])
def test_a_finished_model_is_quantized_without_labels(room, tmp_path, weights):
    result = run(room, tmp_path / "out", weights=weights)
    assert result.metrics["agreement"] >= 0.95
    assert result.metrics["error"] < 0.05
    assert artifact.verify(tmp_path / "out").max_difference == 0
    manifest = artifact.read_manifest(tmp_path / "out")
    assert [step.method for step in manifest.steps] == ["finetune", "quantize"]
    assert manifest.task == artifact.read_manifest(room / "tuned").task
    assert manifest.model.storage == "packed"
    done = runs.run("evaluate", tmp_path / "out", "--data", room / "data", "--json")
    assert done.json["metrics"]["accuracy"] >= 0.9
    native = runs.run("evaluate", tmp_path / "out", "--data", room / "data", "--json", "--engine", "native")
    assert native.json["metrics"] == done.json["metrics"]


def test_two_runs_give_the_same_file_and_one_that_has_ended_is_read_again(room, tmp_path):
    for name in ("one", "two"):
        run(room, tmp_path / name, weights="int4")
    one, two = ((tmp_path / name / "packed.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    again = run(room, tmp_path / "one", weights="int4", resume=True)
    assert again.metrics == artifact.read_manifest(tmp_path / "one").metrics["corpus"]
    assert again.lines()[-1] == f"saved in {tmp_path / 'one'}"


def test_compensation_keeps_answers_closer_than_rounding_does(room):
    from slimformer.methods.quantize.post_training.comparing import Answers
    from slimformer.methods.quantize.student import quantize_numbers

    options = QuantizeConfig(weights="int3", activations="none", granularity="group", group_size=16)
    batches = batches_of(encoded((room / "texts.txt").read_text().splitlines()), 16)
    models = [artifact.load(room / "tuned").model.eval() for _ in range(3)]
    answers = Answers.of(models[0], batches[::2])
    quantize_numbers(models[1], options)
    weights = round_model(models[2], batches[1::2], options, "tuned")
    assert answers.compare(models[2])["error"] < 0.7 * answers.compare(models[1])["error"]
    assert len(weights) == 2 * 6 + 2  # blocks, embedding, pooler
    assert answers.compare(models[0]) == {"error": 0.0, "agreement": 1.0}


def encoded(texts):
    return [{"input_ids": ids} for ids in corpus.tokenizer()(texts, truncation=True)["input_ids"]]


def one_batch(family):
    inputs = zoo.inputs_for(family, padding=None)
    return {name: value for name, value in inputs.items() if name in ("input_ids", "pixel_values")}


@pytest.mark.parametrize("family", sorted(set(zoo.CONFIGS) - UNLIKE - {"vit_mae"}))
def test_blocks_of_all_families_run_alone_as_in_the_model(family):
    model, batch = zoo.enliven(zoo.build(family)).eval(), one_batch(family)
    expected = model(**batch)[0].detach()
    weights = round_model(model, [batch], QuantizeConfig(weights="int8", activations="none"), family)
    matrices = sum(len({matrix.path for matrix in block.matrices.values()}) for block in Anatomy.of(model).blocks)
    assert len(weights) >= matrices
    assert float((model(**batch)[0].detach() - expected).square().sum() / expected.square().sum()) < 1e-2


@pytest.mark.parametrize("family", sorted(UNLIKE))
def test_blocks_with_something_between_them_are_refused(family):
    model, batch = zoo.enliven(zoo.build(family)).eval(), one_batch(family)
    with pytest.raises(CheckpointError, match=f"block 1 of `{family}` is not fed what block 0 gives"):
        Walk(model, [batch], family)


@pytest.mark.slow
def test_decoders_and_vits_are_quantized_too(room, tmp_path):
    from PIL import Image

    decoder = runs.decoder(tmp_path / "decoder")
    result = run(room, tmp_path / "decoder-int8", model=decoder, weights="int8")
    assert isinstance(result.model, hf.LlamaForCausalLM)
    assert artifact.verify(tmp_path / "decoder-int8").max_difference == 0
    draw = torch.Generator().manual_seed(0)
    (tmp_path / "images").mkdir()
    for number in range(20):
        pixels = torch.randint(0, 256, (28, 28, 3), dtype=torch.uint8, generator=draw).numpy()
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    viewer = runs.viewer(tmp_path / "viewer")
    result = run(room, tmp_path / "viewer-int8", model=viewer, corpus=str(tmp_path / "images"), weights="int8")
    assert result.metrics["error"] < 0.01
    assert artifact.verify(tmp_path / "viewer-int8").max_difference == 0


@pytest.mark.slow
def test_few_levels_are_learned_from_the_float_model(room, tmp_path):
    short = run(room, max_steps=2, batch_size=8, lr=1e-3)
    result = run(room, tmp_path / "out", max_steps=60, batch_size=16, lr=2e-3)
    assert result.steps == 60
    assert result.metrics["error"] < short.metrics["error"]
    assert artifact.verify(tmp_path / "out").max_difference == 0
    assert rounding_of(result.model) is not None
    assert {packed.format.name for packed in packed_weights(result.model).values()} == {"ternary"}
    assert artifact.read_manifest(tmp_path / "out").steps[-1].config["max_steps"] == 60


@pytest.mark.slow
def test_lessons_that_were_stopped_go_on_and_give_the_same_file(room, tmp_path, monkeypatch):
    settings = {"max_steps": 8, "save_every": 3, "batch_size": 8, "lr": 1e-3, "threads": 1}
    run(room, tmp_path / "whole", **settings)
    asked = []
    ask = TermObjective.__call__

    def stop(self, model, inputs, totals=None):
        asked.append(1)
        if len(asked) == 6:
            raise KeyboardInterrupt
        return ask(self, model, inputs, totals)

    monkeypatch.setattr(TermObjective, "__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        run(room, tmp_path / "stopped", **settings)
    run(room, tmp_path / "stopped", resume=True, **settings)
    assert len(asked) == 6 + 5  # steps 4 to 8 after the checkpoint of step 3
    whole, stopped = ((tmp_path / name / "packed.safetensors").read_bytes() for name in ("whole", "stopped"))
    assert whole == stopped
    assert not (tmp_path / "stopped.training").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "classification"}, "`task` is `classification`, and `post_training` sees no labels"),
        ({"data": "data"}, "`data` is `data`, and `post_training` sees no labels"),
        ({"weights": "float"}, "`weights` is `float`, and `post_training` is about weights"),
        ({"weights": "int8", "granularity": "matrix"}, "`granularity` is `matrix`, which needs training"),
        ({"weights": "int8", "max_steps": 10}, "`int8` is rounded without a training step"),
        ({"kd": "none"}, "`kd` is `none` and changes nothing in post-training"),
        ({"weights": "ternary", "lr_grid": "1e-4,1e-3"}, "`lr_grid` is .* changes nothing in post-training"),
        ({"post_training": False}, "`corpus` is .* changes nothing without `post_training`"),
    ],
)
def test_settings_that_make_no_sense_are_refused(room, settings, message):
    with pytest.raises(ConfigError, match=message):
        run(room, **settings)


def test_compressed_texts_are_refused_before_work(room, tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one text\nanother\n"))
    with pytest.raises(DataError, match="is compressed, and a few hundred texts are enough here"):
        run(room, tmp_path / "out", corpus=str(tmp_path / "a.txt.gz"), weights="int8")
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt.gz"]


def test_what_cannot_be_calibrated_on_is_refused(room, tmp_path):
    (tmp_path / "few.txt").write_text("one text\n")
    with pytest.raises(DataError, match="too few different examples"):
        run(room, tmp_path / "out", corpus=str(tmp_path / "few.txt"), weights="int8")
    with pytest.raises(ConfigError, match="`group_size` is 999"):
        run(room, tmp_path / "out", weights="int8", granularity="group", group_size=999)
    done = run(room, tmp_path / "done", weights="int8")
    with pytest.raises(CheckpointError, match="quantized"):
        run(room, tmp_path / "out", model=done.folder, weights="int8")
    refused = runs.run("quantize", "--post-training", "--model", room / "tuned", "--out", tmp_path / "out")
    refused.refused("`--corpus` must be given", code=2)
    assert not (tmp_path / "out").exists()
