"""Elastic training of new weights: from a family or a config, on text, labels and images."""

from __future__ import annotations

import random

import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import slimformer
from slimformer import elastic
from slimformer.corpus import open_corpus
from slimformer.errors import CheckpointError, ConfigError, DataError, UsageError
from slimformer.methods.elastic import ElasticConfig
from slimformer.methods.streaming import open_parts, stream_features
from slimformer.models.building import train_tokenizer
from slimformer.sizes import Elastic
from tests import corpus, forking
from tests.methods.elastic.test_method import digest

SHAPE = {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64}
QUICK = {"max_steps": 4, "batch_size": 8, "lr": 3e-3, "threads": 1, "quiet": True, "max_length": 32, "vocabulary": 300}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Sentences in which every word follows from the one before, so that there is something to learn."""
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(0)
    for split, count in (("train", 150), ("dev", 20)):
        lines = []
        for _ in range(count):
            start = rng.randrange(len(corpus.WORDS))
            lines.append(" ".join(corpus.WORDS[(start + number) % len(corpus.WORDS)] for number in range(12)))
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


def train(texts, out=None, **settings):
    values = {**SHAPE, **QUICK, **settings}
    return elastic(task="language-modelling", data=str(texts), out=None if out is None else str(out), **values)


def test_a_decoder_is_trained_from_nothing(texts, tmp_path):
    result = train(texts, tmp_path / "out")
    loaded = slimformer.load(tmp_path / "out")
    assert loaded.manifest.base is None
    assert Elastic.of(loaded.model).names == ("S", "M", "L", "XL")
    assert loaded.model.config.vocab_size == len(loaded.processor) <= 300
    assert slimformer.verify(tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")("the film was good", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(plain(input_ids=tokens).logits, result.model(input_ids=tokens).logits)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_every_size_of_new_weights_learns(texts, family):
    short = train(texts, scratch=family, max_steps=1).metrics
    result = train(texts, scratch=family, max_steps=80)
    assert "soft_labels" not in {name for entry in result.log for name in entry}  # nobody to learn from yet
    for size in ("S", "M", "L", "XL"):
        assert result.metrics[f"perplexity@{size}"] < 0.5 * short[f"perplexity@{size}"]


@pytest.mark.slow
def test_a_config_file_decides_what_no_flag_does(texts, tmp_path):
    LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=3, tie_word_embeddings=True).save_pretrained(
        tmp_path / "like"
    )
    for name in ("like", "like/config.json"):
        result = train(texts, scratch=str(tmp_path / name), max_steps=1, layers=None, hidden=None, heads=None)
        assert len(Elastic.of(result.model).blocks) == 3
        assert result.model.config.tie_word_embeddings
        assert result.model.config.intermediate_size == 64


@pytest.mark.slow
def test_a_model_lends_its_tokenizer(texts, tmp_path):
    corpus.model_folder(tmp_path / "like")
    result = train(texts, scratch=str(tmp_path / "like"), vocabulary=None, max_steps=1, hidden=16)
    assert result.processor.get_vocab() == corpus.tokenizer().get_vocab()
    assert result.model.config.hidden_size == 16


@pytest.mark.slow
def test_labels_and_images_too(tmp_path):
    corpus.data_folder(tmp_path / "labelled")
    settings = {**SHAPE, **QUICK, "max_steps": 2}
    result = elastic(scratch="bert", task="classification", data=str(tmp_path / "labelled"), **settings)
    assert result.model.config.num_labels == 2
    for split, label, shade in (
        ("train", "dark", 20),
        ("train", "light", 230),
        ("dev", "dark", 30),
        ("dev", "light", 220),
    ):
        folder = tmp_path / "images" / split / label
        folder.mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (16, 16), (shade, shade, number)).save(folder / f"{number}.png")
    (tmp_path / "vit.json").write_text('{"model_type": "vit", "image_size": 16, "patch_size": 4}')
    del settings["vocabulary"], settings["max_length"]
    result = elastic(
        scratch=str(tmp_path / "vit.json"), task="image-classification", data=str(tmp_path / "images"), **settings
    )
    assert result.model.config.image_size == 16
    assert "accuracy@S" in result.metrics


@pytest.mark.slow
def test_killed_and_resumed_from_scratch_ends_with_the_same_bytes(texts, tmp_path):
    """Tokenizer, weights and turns of joint training alike, with steps that are shorter at the end of an epoch."""

    def command(out):
        return (
            "elastic", "--layers", 2, "--hidden", 32, "--heads", 4, "--vocabulary", 300, "--max-length", 32,
            "--task", "language-modelling", "--data", texts, "--out", out, "--training", "joint", "--max-steps", 5,
            "--batch-size", 28, "--save-every", 1, "--threads", 1, "--resume",
        )  # fmt: skip

    assert forking.run(*command(tmp_path / "whole")).code == 0
    # The step before was a short one.
    checkpoint = tmp_path / "killed.training" / "checkpoint-3"
    assert forking.killed_when(checkpoint.exists, *command(tmp_path / "killed"))
    assert forking.run(*command(tmp_path / "killed")).code == 0
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """A corpus of documents that are all different, one a line."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    rng = random.Random(0)
    path.write_text("".join(" ".join(rng.choices(corpus.WORDS, k=12)) + "\n" for _ in range(600)))
    return path


def test_a_corpus_is_streamed_and_measured_on_what_is_held_out(lines, tmp_path):
    result = elastic(corpus=str(lines), out=str(tmp_path / "out"), **SHAPE, **QUICK)
    assert result.steps == 4
    loaded = slimformer.load(tmp_path / "out")
    assert loaded.manifest.task.name == "language-modelling"
    assert result.metrics["perplexity@S"] > 1
    parts = {held_out: list(open_corpus(lines).part(held_out=held_out).documents()) for held_out in (True, False)}
    assert sorted(parts[True] + parts[False]) == sorted(lines.read_text().splitlines())
    assert 30 < len(parts[True]) < 90
    assert set(parts[True]).isdisjoint(parts[False])


def test_streamed_examples_have_what_is_predicted(lines):
    for family, causal in (("llama", True), ("bert", False)):
        config = ElasticConfig(scratch=family, corpus=[str(lines)], epochs=0.5, **SHAPE, batch_size=8)
        data = open_parts(config, causal=causal)
        tokenizer = train_tokenizer((each["text"] for each in data["train"]), 300, causal=causal)
        features = stream_features(config, data, tokenizer, 32)
        assert len(features) % 8 == 0
        assert len(features) >= 8
        first, same = features[0], stream_features(config, data, tokenizer, 32)[0]
        assert all((first[name] == same[name]).all() for name in first)
        assert ((first["labels"] == first["input_ids"]).all()) == causal
        assert 0 < (first["labels"] >= 0).sum() <= 32


def test_a_corpus_of_one_document_is_refused(tmp_path):
    (tmp_path / "corpus.txt").write_text("one document alone\n")
    with pytest.raises(DataError, match="too few different documents to hold some out for dev: dev is empty"):
        elastic(corpus=str(tmp_path / "corpus.txt"), out=str(tmp_path / "out"), **SHAPE, **QUICK)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus": "a.txt", "data": "b"}, "`corpus` is text without labels, which `data` is not for"),
        ({"corpus": "a.txt", "header": False}, "`corpus` is text without labels, which `header` is not for"),
        ({"corpus": "a.txt", "shares": "0.9,0.1"}, "`corpus` is text without labels, which `shares` is not for"),
        ({"corpus": "a.txt", "task": "sst2"}, "a corpus is learned by `language-modelling`"),
        ({"model": "minilm", "layers": 2}, "`model` is a checkpoint, and `layers` is for new weights"),
        ({"model": "minilm", "vocabulary": 300}, "`vocabulary` is for new weights"),
        ({"scratch": "llama", "order": "activation"}, "new weights have no order yet"),
        ({"layers": 2, "vocabulary": 100}, "greater than or equal to 261"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ElasticConfig.make(settings)


def test_what_cannot_start_is_refused_before_work(texts, tmp_path):
    with pytest.raises(UsageError, match="`--model` must be given, or `--scratch`"):
        elastic(task="language-modelling", data=str(texts))
    with pytest.raises(CheckpointError, match="`vit` is a model for images"):
        train(texts, tmp_path / "out", scratch="vit", vocabulary=None)
    with pytest.raises(ConfigError, match="does not divide `hidden` 30"):
        train(texts, tmp_path / "out", hidden=30)
    with pytest.raises(ConfigError, match="the model has 2048 positions; give 2048 or less"):
        train(texts, tmp_path / "out", max_length=4096)
    assert list(tmp_path.iterdir()) == []


def test_distillation_and_order_are_on_for_pretrained_models_alone():
    new, pretrained = ElasticConfig(layers=2), ElasticConfig(model="minilm")
    assert (new.distil_weight, new.ordering) == (0.0, "none")
    assert (pretrained.distil_weight, pretrained.ordering) == (1.0, "activation")
    assert ElasticConfig(layers=2, distil=0.5).distil_weight == 0.5
