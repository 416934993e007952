"""`slimformer.finetune` from Python, artifacts as bases of further runs, and what becomes of heads."""

from __future__ import annotations

import json
import shutil
import tempfile

import pytest
import torch
import transformers as hf

import slimformer
from slimformer.artifact import read_manifest
from slimformer.errors import ArtifactError, ConfigError, DataError, TrainingError
from slimformer.methods.finetune import FinetuneConfig
from tests import corpus, runs

QUICK = {"max_steps": 2, "batch_size": 8, "lr": 1e-3, "quiet": True}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return corpus.model_folder(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus.data_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def first(base, data, tmp_path_factory):
    """An artifact with a head for `no` and `yes`."""
    folder = tmp_path_factory.mktemp("first") / "first"
    slimformer.finetune(model=base, task="classification", data=data, out=folder, **QUICK)
    return folder


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def renamed(data, folder, **labels):
    """The generated data with other labels."""
    folder.mkdir()
    for split in ("train", "dev"):
        lines = (data / f"{split}.tsv").read_text().splitlines()
        rows = [line.rsplit("\t", 1) for line in lines[1:]]
        (folder / f"{split}.tsv").write_text("\n".join([lines[0], *(f"{a}\t{labels[b]}" for a, b in rows)]) + "\n")
    return folder


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_model_comes_back_in_memory_and_no_folder_stays(base, data, temporary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = slimformer.finetune(model=base, task="classification", data=data, **QUICK)
    assert isinstance(result.model, hf.BertForSequenceClassification)
    assert not result.model.training
    assert result.folder is None
    assert result.summary()["out"] is None
    assert result.model.config.id2label == {0: "no", 1: "yes"}
    batch = result.processor("the film was good", return_tensors="pt")
    assert result.model(**batch).logits.shape == (1, 2)
    assert not runs.listing(tmp_path)
    assert not runs.listing(temporary)


def test_nothing_stays_after_an_error_either(base, data, temporary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for error, changes in [
        (DataError, {"data": tmp_path / "nowhere"}),
        (DataError, {"max_length": 1000}),
        (TrainingError, {"lr": 1e12, "clip": 0.0, "max_steps": 9}),
        (TrainingError, {"accumulation": 3}),
    ]:
        with pytest.raises((error, ConfigError)):
            slimformer.finetune(**{"model": base, "task": "classification", "data": data, **QUICK, **changes})
        assert not runs.listing(tmp_path)
        assert not runs.listing(temporary)


def test_an_interrupted_run_without_a_checkpoint_leaves_nothing(base, data, temporary, tmp_path, monkeypatch):
    """Ctrl-C in the first steps, with and without a folder for the result."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupt)
    for out in (None, tmp_path / "out"):
        with pytest.raises(KeyboardInterrupt):
            slimformer.finetune(model=base, task="classification", data=data, out=out, **QUICK)
    assert not runs.listing(tmp_path)
    assert not runs.listing(temporary)


@pytest.mark.slow
def test_the_seed_decides_and_nothing_else_does(base, data, tmp_path):
    torch.manual_seed(1)
    one = slimformer.finetune(model=base, task="classification", data=data, seed=5, **QUICK)
    torch.manual_seed(2)
    two = slimformer.finetune(model=base, task="classification", data=data, seed=5, out=tmp_path / "out", **QUICK)
    other = slimformer.finetune(model=base, task="classification", data=data, seed=6, **QUICK)
    assert same(weights(one.model), weights(two.model))
    assert one.metrics == two.metrics
    assert not torch.equal(one.model.classifier.weight, other.model.classifier.weight)
    assert same(weights(two.model), weights(slimformer.load(tmp_path / "out").model))


def test_a_config_and_settings_by_name(base, data):
    config = FinetuneConfig(model=str(base), task="classification", data=str(data), max_steps=5, lr=1e-3)
    assert slimformer.finetune(config, max_steps=1, quiet=True).steps == 1
    with pytest.raises(ConfigError, match=r"there is no setting `max_step` \(do you mean `max_steps`\?\); known: "):
        slimformer.finetune(config, max_step=1)
    with pytest.raises(ConfigError, match="`--model` must be given"):
        slimformer.finetune(task="classification", data=data)
    with pytest.raises(ConfigError, match="`--task` and `--data` must be given"):
        slimformer.finetune(model=base)


def test_a_finished_run_is_not_done_again(first, base, data):
    before = read_manifest(first)
    again = slimformer.finetune(model=base, task="classification", data=data, out=first, resume=True, **QUICK)
    assert again.metrics == before.metrics["classification/dev"]
    assert again.steps == 2
    assert read_manifest(first) == before


def test_the_chain_of_two_runs(first, data, tmp_path):
    slimformer.finetune(model=first, task="classification", data=data, out=tmp_path / "second", seed=9, **QUICK)
    chain = read_manifest(tmp_path / "second").steps
    assert [step.seed for step in chain] == [0, 9]
    assert chain[1].base is not None
    assert chain[1].base.name == "first"
    assert chain[1].base.fingerprint == read_manifest(first).model.fingerprint
    assert slimformer.verify(tmp_path / "second").max_difference == 0


def test_an_artifact_may_take_the_place_of_its_own_base(first, data, tmp_path):
    copy = shutil.copytree(first, tmp_path / "copy")
    slimformer.finetune(model=copy, task="classification", data=data, out=copy, overwrite=True, **QUICK)
    assert len(read_manifest(copy).steps) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


STILL = {**QUICK, "max_steps": 1, "lr": 1e-12, "weight_decay": 0.0}


def test_the_same_labels_keep_the_head(first, data):
    head = slimformer.load(first).model.classifier.weight
    result = slimformer.finetune(model=first, task="classification", data=data, **STILL)
    assert torch.allclose(result.model.classifier.weight, head, atol=1e-6)
    assert result.notes == []


@pytest.mark.parametrize("labels", [{"yes": "good", "no": "bad"}, {"yes": "a", "no": "z"}])
def test_other_labels_get_a_new_head_even_if_they_are_as_many(first, data, tmp_path, labels):
    before = slimformer.load(first).model
    result = slimformer.finetune(
        model=first, task="classification", data=renamed(data, tmp_path / "other", **labels), **STILL
    )
    assert result.model.config.id2label == dict(enumerate(sorted(labels.values())))
    assert not torch.allclose(result.model.classifier.weight, before.classifier.weight, atol=1e-3)
    assert result.model.classifier.weight.abs().max() < 0.2  # drawn, not left as it lay in memory
    kept = weights(before.bert)
    assert all(torch.allclose(value, kept[name], atol=1e-6) for name, value in weights(result.model.bert).items())
    (note,) = result.notes
    assert "was made for the labels `no`, `yes`; a new one is trained" in note


def test_more_labels_get_a_larger_head(first, data, tmp_path):
    other = renamed(data, tmp_path / "other", yes="a", no="b")
    for split in ("train", "dev"):
        with (other / f"{split}.tsv").open("a") as file:
            file.write("the end\tc\n")
    result = slimformer.finetune(model=first, task="classification", data=other, **QUICK)
    assert result.model.classifier.weight.shape[0] == 3
    assert result.notes


def test_another_kind_of_task_gets_a_new_head_even_if_its_weights_bear_the_same_name(first, tmp_path):
    """Tagging with two tags: `classifier.weight` [2, width], as in the classifier."""
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text('{"tokens": ["the", "film"], "tags": ["no", "yes"]}\n' * 4)
    before = slimformer.load(first).model.classifier.weight
    result = slimformer.finetune(model=first, task="tagging", data=tmp_path, **STILL)
    assert result.model.classifier.weight.shape == before.shape
    assert not torch.allclose(result.model.classifier.weight, before, atol=1e-3)
    assert "another kind of task (`BertForSequenceClassification`)" in result.notes[-1]


def test_from_one_kind_of_decoder_to_the_next(data, tmp_path):
    """Llama's head for question answering calls the base by another name than all its others."""
    row = {"id": "1", "question": "the end", "context": "the film", "answers": {"text": ["film"], "answer_start": [4]}}
    (tmp_path / "questions").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "questions" / f"{split}.jsonl").write_text(f"{json.dumps(row)}\n" * 4)
    base = runs.decoder(tmp_path / "base")
    before = weights(hf.AutoModel.from_pretrained(base))
    first, second = tmp_path / "first", tmp_path / "second"
    answering = slimformer.finetune(
        model=base, task="question-answering", data=tmp_path / "questions", out=first, **STILL
    )
    kept = weights(answering.model.base_model)
    assert all(torch.allclose(value, kept[name], atol=1e-6) for name, value in before.items())
    result = slimformer.finetune(model=first, task="classification", data=data, out=second, **STILL)
    kept = weights(result.model.base_model)
    assert all(torch.allclose(value, kept[name], atol=1e-6) for name, value in before.items())
    assert len(read_manifest(second).steps) == 2


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "README.md", "slimformer.json"])
def test_a_harmed_base_is_refused_before_anything_else(name, first, tmp_path, temporary):
    copy = shutil.copytree(first, tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=name):
        slimformer.finetune(model=copy, task="classification", data=tmp_path / "nowhere", out=tmp_path / "out", **QUICK)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.training").exists()
    assert not runs.listing(temporary)
