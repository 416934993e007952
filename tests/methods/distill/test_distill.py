"""Distillation from settings to a student that anyone can load."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file

import slimformer
from slimformer import Anatomy, artifact
from slimformer.errors import ConfigError, TrainingError
from tests import corpus, zoo
from tests.forking import killed_when
from tests.runs import run

SHAPE = {"layers": 1, "hidden": 24, "heads": 4}
QUICK = {**SHAPE, "max_steps": 4, "batch_size": 8, "max_length": 16, "log_every": 1, "lr": 1e-3, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny teacher and a text."""
    folder = tmp_path_factory.mktemp("distill")
    zoo.build("bert").save_pretrained(folder / "teacher")
    corpus.tokenizer().save_pretrained(folder / "teacher")
    rows = (corpus.data_folder(folder / "data") / "train.tsv").read_text().splitlines()[1:]
    (folder / "text.txt").write_text("\n".join(row.split("\t")[0] for row in rows) + "\n")
    return folder


def distill(place, **settings):
    given = {"teacher": place / "teacher", "corpus": [str(place / "text.txt")], **QUICK, **settings}
    return slimformer.distill(**{name: value for name, value in given.items() if value is not None})


def learned(result):
    """By which share the loss fell, from the first to the last steps."""
    losses = [entry["loss"] for entry in result.log if "loss" in entry]
    return 1 - np.mean(losses[-4:]) / np.mean(losses[:4])


@pytest.mark.slow
def test_the_student_is_a_plain_checkpoint(place, tmp_path):
    result = distill(place, out=tmp_path / "out", max_steps=60, lr=1e-2)
    assert learned(result) > 0.3
    assert result.losses.keys() == {"loss", "qq", "kk", "vv"}
    assert result.losses["loss"] == pytest.approx(sum(result.losses[name] for name in ("qq", "kk", "vv")), rel=1e-4)
    program = (
        "import sys; from transformers import AutoModel, AutoTokenizer; f = sys.argv[1]; "
        "m = AutoModel.from_pretrained(f); t = AutoTokenizer.from_pretrained(f); "
        "print(m(**t('the film was good', return_tensors='pt')).last_hidden_state.shape[-1]); "
        "assert 'slimformer' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], capture_output=True, text=True)
    assert done.stdout.split() == ["24"], done.stderr
    report = artifact.verify(tmp_path / "out")
    assert report.max_difference == 0
    step = artifact.read_manifest(tmp_path / "out").steps[-1]
    assert (step.method, step.config["chosen_layer"]) == ("distill", 2)
    assert not (tmp_path / "out.training").exists()


@pytest.mark.slow
def test_the_untrained_end_of_the_student_passes_through(place):
    block = Anatomy.of(distill(place).model).blocks[-1]
    for matrix in (block.output, block.down):
        assert not matrix.weight.any()
    assert block.query.weight.any()
    assert all(parameter.requires_grad for parameter in block.module.parameters())


def test_a_start_from_the_teacher_keeps_its_end(place):
    result = distill(place, start="truncate")
    teacher = Anatomy.of(hf.AutoModel.from_pretrained(place / "teacher")).blocks[0]
    ours = Anatomy.of(result.model).blocks[0]
    assert torch.equal(ours.down.weight, teacher.down.weight[:24, :32])
    assert not torch.equal(ours.value.weight, teacher.value.weight[:24, :24])  # and learns the rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "terms"),
    [
        ({"relations": "all"}, {"qq", "qk", "qv", "kq", "kk", "kv", "vq", "vk", "vv"}),
        ({"relations": ("qk", "vv"), "relation_weights": (1.0, 0.5), "relation_heads": 2}, {"qk", "vv"}),
        ({"objective": "minilm-v1"}, {"map", "vv"}),
        ({"objective": "hidden-states", "teacher_layer": 0}, {"hidden"}),
        ({"pooled": "mean"}, {"qq", "kk", "vv", "pooled"}),
        ({"pooled": "cls", "pooled_weight": 2.0, "relations": "vv"}, {"vv", "pooled"}),
        ({"embedding": 8}, {"qq", "kk", "vv"}),
        ({"bf16": True}, {"qq", "kk", "vv"}),
        ({"teacher_dtype": "bfloat16", "pooled": "mean"}, {"qq", "kk", "vv", "pooled"}),
        ({"teacher_dtype": "float16"}, {"qq", "kk", "vv"}),
        ({"teacher_dtype": "bfloat16", "objective": "minilm-v1"}, {"map", "vv"}),
        ({"teacher_dtype": "bfloat16", "objective": "hidden-states"}, {"hidden"}),
        ({"accumulation": 2}, {"qq", "kk", "vv"}),
        ({"gradient_checkpointing": True, "layers": 2}, {"qq", "kk", "vv"}),
    ],
)
def test_what_can_be_learned(place, settings, terms):
    result = distill(place, **settings, max_steps=20, lr=1e-2)
    assert result.losses.keys() == {"loss", *terms}
    assert all(np.isfinite(value) for value in result.losses.values())
    assert learned(result) > 0.02


def test_a_16_bit_teacher_says_nearly_the_same(place):
    exact, rounded = (distill(place, teacher_dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert all(parameter.dtype is torch.float32 for parameter in rounded.model.parameters())
    assert rounded.losses["loss"] == pytest.approx(exact.losses["loss"], rel=0.02)
    assert rounded.losses["loss"] != exact.losses["loss"]


def test_a_student_of_a_16_bit_teacher_starts_from_exact_weights(place):
    result = distill(place, start="truncate", teacher_dtype="bfloat16")
    teacher = Anatomy.of(hf.AutoModel.from_pretrained(place / "teacher")).blocks[0]
    assert torch.equal(Anatomy.of(result.model).blocks[0].down.weight, teacher.down.weight[:24, :32])


def test_gradient_checkpointing_changes_nothing(place):
    plain, spared = (distill(place, layers=2, gradient_checkpointing=on) for on in (False, True))
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(spared.model.state_dict()[name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_sentence_encoder_says_how_it_pools(place, tmp_path, pooling):
    distill(place, pooled=pooling, out=tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    assert settings["word_embedding_dimension"] == 24
    assert (settings["pooling_mode_cls_token"], settings["pooling_mode_mean_tokens"]) == (
        pooling == "cls",
        pooling == "mean",
    )
    assert artifact.verify(tmp_path / "out").max_difference == 0


def test_pooled_embeddings_train_the_whole_student(place):
    result = distill(place, pooled="mean", max_steps=40, lr=3e-3)
    assert Anatomy.of(result.model).blocks[-1].down.weight.any()
    assert result.losses["pooled"] < result.log[0]["pooled"] / 2
    assert "free" not in "".join(result.model.state_dict())  # the matrix stays behind


TEACHERS = [family for family in zoo.TEXTS if family not in ("qwen2", "qwen3", "gemma", "gpt_neox")]


@pytest.mark.slow
@pytest.mark.parametrize("family", TEACHERS)
def test_teachers_of_every_kind(family, place, tmp_path):
    zoo.build(family).save_pretrained(tmp_path / "teacher")
    corpus.tokenizer().save_pretrained(tmp_path / "teacher")
    heads = {"layers": 2, "hidden": 24, "heads": 2 if family in zoo.CAUSAL else 3}
    steps = {"max_steps": 24, "lr": 1e-2, "batch_size": 16}
    result = distill(place, teacher=tmp_path / "teacher", **heads, relation_heads=4, out=tmp_path / "out", **steps)
    assert learned(result) > 0.02
    assert type(zoo.bare(family).from_pretrained(tmp_path / "out")) is type(result.model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype"), [("vit", "float32"), ("deit", "float32"), ("vit_mae", "float32"), ("vit_mae", "bfloat16")]
)
def test_teachers_that_see(family, dtype, tmp_path):
    zoo.build(family).save_pretrained(tmp_path / "teacher")
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    (tmp_path / "teacher" / "preprocessor_config.json").write_text(json.dumps(processor))
    (tmp_path / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{number}.png")
    settings = {**QUICK, "max_length": None, "hidden": 24, "heads": 3, "relation_heads": 4, "max_steps": 20, "lr": 5e-3}
    settings = {name: value for name, value in settings.items() if value is not None}
    settings = {**settings, "teacher": tmp_path / "teacher", "teacher_dtype": dtype, "out": tmp_path / "out"}
    if dtype == "bfloat16":
        settings |= {"teacher_layer": "auto", "probe_steps": 1}  # trials look at the teacher's embeddings too
    result = slimformer.distill(corpus=[str(tmp_path / "pictures")], **settings)
    assert learned(result) > 0.02
    assert Anatomy.of(hf.AutoModel.from_pretrained(tmp_path / "out")).hidden == 24


@pytest.mark.slow
def test_soft_labels_of_a_classifier_and_of_a_language_model(place, tmp_path):
    data = corpus.data_folder(tmp_path / "data")
    slimformer.finetune(
        model=corpus.model_folder(tmp_path / "base"),
        task="classification",
        data=data,
        out=tmp_path / "t",
        max_steps=40,
        lr=3e-3,
        quiet=True,
    )
    result = distill(place, teacher=tmp_path / "t", objective="soft-labels", out=tmp_path / "s", max_steps=60, lr=3e-3)
    assert type(result.model).__name__ == "BertForSequenceClassification"
    assert result.model.config.id2label == {0: "no", 1: "yes"}
    zoo.build_headed("gpt2").save_pretrained(tmp_path / "lm")
    corpus.tokenizer().save_pretrained(tmp_path / "lm")
    shape = {"hidden": 24, "objective": "soft-labels"}
    spoken = distill(place, teacher=tmp_path / "lm", **shape)
    assert type(spoken.model).__name__ == "GPT2LMHeadModel"
    with pytest.raises(ConfigError, match="without a head"):
        distill(place, objective="soft-labels")


@pytest.mark.slow
def test_relations_of_a_deep_teacher_are_those_of_its_upper_middle_block(place, tmp_path):
    torch.manual_seed(0)
    hf.BertModel(hf.BertConfig(**{**zoo.TEXT, "num_hidden_layers": 24})).save_pretrained(tmp_path / "deep")
    corpus.tokenizer().save_pretrained(tmp_path / "deep")
    deep = {"teacher": tmp_path / "deep", "max_steps": 1}
    assert distill(place, **deep).teacher_layer == 20  # the 21st of 24
    assert distill(place, **deep, teacher_layer="last").teacher_layer == 23
    assert distill(place, **deep, objective="hidden-states").teacher_layer == 23


def test_a_student_that_is_there_already(place, tmp_path):
    first = distill(place, out=tmp_path / "first")
    again = distill(place, student=tmp_path / "first", out=tmp_path / "second", layers=None, hidden=None, heads=None)
    assert again.log[0]["loss"] < first.log[0]["loss"]
    assert [step.method for step in artifact.read_manifest(tmp_path / "second").steps] == ["distill", "distill"]


@pytest.mark.slow
def test_auto_tries_every_block_and_notes_its_choice(place, tmp_path):
    report = tmp_path / "r" / "out.html"
    result = distill(place, teacher_layer="auto", probe_steps=2, out=tmp_path / "out", report=report)
    assert [(trial.layer, trial.steps) for trial in result.trials][:3] == [(0, 2), (1, 2), (2, 2)]
    assert [trial.steps for trial in result.trials][3:] == [4, 4]
    assert result.teacher_layer == max(result.trials[3:], key=lambda trial: trial.score).layer
    page = report.read_text()
    for words in ("Blocks of the teacher, tried", "Losses", "speed-up"):
        assert words in page


def test_a_report_that_cannot_be_written_is_found_before_the_work(place, tmp_path):
    (tmp_path / "file").write_text("")
    for report, error in ((tmp_path / "file" / "r.html", TrainingError), (tmp_path, ConfigError)):
        with pytest.raises(error, match="--report"):
            distill(place, out=tmp_path / "out", report=report)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_auto_can_be_judged_by_labels(place, tmp_path):
    result = distill(
        place, teacher_layer="auto", probe_steps=2, out=tmp_path / "out", then_task="classification",
        data=place / "data", finetune_steps=2,
    )  # fmt: skip
    assert all(0.3 < trial.score <= 1 for trial in result.trials)
    assert result.task is not None
    assert result.task.folder == tmp_path / "out-classification"
    assert artifact.read_manifest(result.task.folder).steps[0].method == "distill"


@pytest.mark.slow
def test_the_cache_changes_nothing(place, tmp_path):
    plain = distill(place, max_steps=20)
    kept = [distill(place, max_steps=20, teacher_cache=tmp_path / "cache") for _ in range(2)]
    assert list((tmp_path / "cache").rglob("*.safetensors"))
    for other in kept:
        for name, weight in plain.model.state_dict().items():
            torch.testing.assert_close(other.model.state_dict()[name], weight, rtol=1e-3, atol=1e-5)


def test_kept_tokens_of_a_compressed_corpus_change_nothing(place, tmp_path, monkeypatch):
    """Neither does the place they are kept in, nor how many processes made them."""
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress((place / "text.txt").read_bytes()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    expected = distill(place).model.state_dict()
    for settings in ({"token_cache": tmp_path / "kept", "workers": 2}, {}):
        actual = distill(place, corpus=[str(packed)], **settings).model.state_dict()
        assert all(torch.equal(weight, expected[name]) for name, weight in actual.items())
    for folder in (tmp_path / "kept", tmp_path / "home" / "slimformer" / "tokens"):
        assert len(list(folder.glob("*/*.safetensors"))) == 2  # a shard and the index


def test_epochs_are_passes_over_the_corpus(place):
    examples = sum(len(line.split()) + 1 for line in (place / "text.txt").read_text().splitlines()) / 14
    result = distill(place, epochs=2, max_steps=None)
    assert result.steps == pytest.approx(2 * examples / 8, abs=1.5)
    assert distill(place, epochs=2, max_steps=3).steps == 3


def flags(place, text):
    shape = ["--layers", 1, "--hidden", 24, "--heads", 4, "--max-length", 16, "--pooled", "mean"]
    steps = ["--max-steps", 60, "--batch-size", 8, "--save-every", 7, "--threads", 1, "--buffer", 1]
    return ["distill", "--teacher", place / "teacher", "--corpus", text, *shape, *steps]


@pytest.mark.slow
def test_killed_and_resumed_is_undisturbed(place, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text((place / "text.txt").read_text())
    command = flags(place, text)
    whole = run(*command, "--out", tmp_path / "whole", "--json").json
    out, training = tmp_path / "out", tmp_path / "out.training"
    assert killed_when((training / "checkpoint-14").exists, *command, "--out", out)
    run(*command, "--out", out).refused("an unfinished run lies in")
    run(*command, "--out", out, "--resume", "--lr", 2e-3).refused("had `--lr` = `0.001`")
    text.write_text("the film was bad\n" * 50)
    run(*command, "--out", out, "--resume").refused("the data of the run in", "changed since it began")
    text.write_text((place / "text.txt").read_text())
    done = run(*command, "--out", out, "--resume", "--json").json
    assert (done["steps"], whole["steps"]) == (60, 60)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "whole"))
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
    again = run(*command, "--out", out, "--resume", "--json").json
    assert again["losses"] == done["losses"]
    assert not training.exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"relation_heads": 5}, "does not divide the teacher's width 48; choose from 1, 2, 3, 4, 6, 8"),
        ({"relations": "qq,xx"}, "there is no relation `xx`"),
        ({"relation_weights": (1.0,)}, "1 weights for 3 relations"),
        ({"teacher_layer": 3}, "the teacher has 3 blocks; give 0 to 2"),
        ({"heads": 5}, "does not divide `hidden` 24"),
        ({"objective": "minilm-v1", "heads": 2}, "has 2 where the teacher has 4"),
        ({"pooled": "mean", "hidden": 64}, "is 64 wide and the teacher 48"),
        ({"max_length": 65}, "the model takes 64 tokens"),
        ({"student": "x"}, "leave out `layers` or `student`"),
        ({"then_task": "classification"}, "`then_task` and `data` go together"),
        ({"then_task": "classification", "data": "nowhere"}, "nowhere"),
        ({"then_task": "clasification", "data": "nowhere"}, "clasification"),
        ({"start": "spaced", "layers": 4}, "the student has 4 layers and the teacher 3"),
    ],
)
def test_what_cannot_be_is_refused_before_work(place, tmp_path, settings, words):
    with pytest.raises(slimformer.errors.SlimformerError, match=words):
        distill(place, out=tmp_path / "out", **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_student_needs_a_size(place, tmp_path):
    files = ["--teacher", place / "teacher", "--corpus", place / "text.txt", "--out", tmp_path / "out"]
    run("distill", *files).refused("as large as its teacher; give `--layers`", code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_mask_is_no_teacher(place, tmp_path):
    data = corpus.data_folder(tmp_path / "data", train=8, dev=8)
    settings = {"model": place / "teacher", "task": "classification", "data": data, "blocks": "0-"}
    slimformer.mask(**settings, out=tmp_path / "mask", max_steps=1)
    with pytest.raises(slimformer.errors.CheckpointError, match="is a mask on a base and no checkpoint; merge"):
        distill(place, teacher=tmp_path / "mask")


@pytest.mark.slow
@pytest.mark.parametrize("start", ["random", "spaced"])
def test_a_quantized_teacher_has_a_plain_student(start, place, tmp_path):
    data = corpus.data_folder(tmp_path / "data", train=8, dev=8)
    settings = {"model": place / "teacher", "task": "classification", "data": data, "quiet": True}
    slimformer.quantize(**settings, out=tmp_path / "packed", max_steps=1)
    shape = {"layers": 1, "hidden": None, "heads": None} if start == "spaced" else SHAPE
    distill(place, teacher=tmp_path / "packed", out=tmp_path / "student", start=start, max_steps=1, **shape)
    student = hf.AutoModel.from_pretrained(tmp_path / "student")
    assert not hasattr(student.config, "quantization_config")
    assert len(Anatomy.of(student).blocks) == 1


def test_one_corpus_may_stand_without_a_list(place):
    assert slimformer.methods.distill.DistillConfig.make({"corpus": place / "text.txt"}).corpus == (
        str(place / "text.txt"),
    )


def test_other_tokens_are_refused(place, tmp_path):
    corpus.model_folder(tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    file.write_text(file.read_text().replace('"lovely"', '"love"'))
    with pytest.raises(ConfigError, match="token 8 is `lovely` to the teacher and `love` to the student"):
        distill(place, student=tmp_path / "other", layers=None, hidden=None, heads=None)


@pytest.mark.slow
def test_the_real_teacher_on_real_text(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(["the film was long but lovely", "shares fell on monday", "how do I boil an egg"] * 60))
    result = slimformer.distill(
        teacher="minilm", layers=3, hidden=192, heads=12, relation_heads=48, corpus=[str(text)], max_length=32,
        batch_size=4, max_steps=8, lr=1e-3, log_every=1, out=tmp_path / "out", quiet=True,
    )  # fmt: skip
    assert learned(result) > 0
    assert result.model.num_parameters() < 7.5e6
    assert hf.AutoTokenizer.from_pretrained(tmp_path / "out")("an egg")["input_ids"] == [101, 2019, 8288, 102]
    measured = run("evaluate", tmp_path / "out", "--task", "similarity", "--data", pairs(tmp_path), "--json").json
    assert set(measured["metrics"]) == {"spearman", "pearson"}


def pairs(folder):
    """Pairs of texts with a number each."""
    (folder / "pairs").mkdir()
    rows = ["sentence1\tsentence2\tscore", "a dog runs\ta dog is running\t5", "a dog runs\ta cat sleeps\t2"]
    (folder / "pairs" / "dev.tsv").write_text("\n".join([*rows, "a dog runs\tshares fell\t0"]) + "\n")
    return folder / "pairs"
