"""TSDAE from settings to a sentence encoder that anyone can load."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import slimformer
from slimformer import artifact
from slimformer.errors import CheckpointError, ConfigError
from slimformer.inference.embedding import embed
from slimformer.inference.pipeline import open_pipeline
from slimformer.models.sentence import SentenceSettings
from tests import corpus, forking, runs, zoo

QUICK = {"max_steps": 4, "batch_size": 8, "max_length": 16, "lr": 1e-3, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny sentence encoder, a plain model, one of a family without a decoder, and a text."""
    folder = tmp_path_factory.mktemp("sentences")
    for name, family in (("encoder", "bert"), ("base", "bert"), ("mpnet", "mpnet")):
        zoo.build(family).save_pretrained(folder / name)
        corpus.tokenizer().save_pretrained(folder / name)
    SentenceSettings(("mean",), normalize=True).write(folder / "encoder", 48)
    rows = (corpus.data_folder(folder / "data") / "train.tsv").read_text().splitlines()[1:]
    (folder / "text.txt").write_text("\n".join(row.split("\t")[0] for row in rows) + "\n")
    return folder


def adapt(place, **changes):
    settings = {"model": place / "encoder", "corpus": [str(place / "text.txt")], "objective": "tsdae"}
    warm_up = {} if "model" in changes or changes.get("trains") == "head" else {"head_steps": 3}
    return slimformer.adapt(**{**settings, **QUICK, **warm_up, **changes})


@pytest.mark.slow
def test_the_result_is_a_sentence_encoder(place, tmp_path):
    result = adapt(place, out=tmp_path / "out", max_steps=30)
    assert type(result.model) is hf.BertModel
    assert result.metrics["reconstruction"] < result.metrics["reconstruction_before"]
    assert result.metrics["drift"] > 0
    assert artifact.verify(tmp_path / "out").max_difference == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (place / "encoder", tmp_path / "out"))
    assert before.keys() == after.keys()
    assert torch.equal(before["pooler.dense.weight"], after["pooler.dense.weight"])
    name = "encoder.layer.0.attention.self.value.weight"
    assert not torch.equal(before[name], after[name])
    # No round by default, and the decoder was trained alone first.
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.warmup"}
    warmed = load_file(tmp_path / "out.warmup" / "model.safetensors")
    assert any("crossattention" in name for name in warmed)
    assert all(
        torch.equal(value, warmed[f"bert.{name}"]) for name, value in before.items() if not name.startswith("pooler")
    )
    assert artifact.verify(tmp_path / "out.warmup").max_difference == 0
    assert not hf.AutoConfig.from_pretrained(tmp_path / "out").is_decoder
    assert SentenceSettings.read(tmp_path / "out") == SentenceSettings.read(place / "encoder")
    vectors = embed(
        open_pipeline(tmp_path / "out", task="retrieval"), ["the film was good", "bad", "the film was good"]
    )
    np.testing.assert_allclose(vectors[0], vectors[2], rtol=1e-5)
    assert not np.allclose(vectors[0], vectors[1])


@pytest.mark.slow
def test_rounds_keep_to_the_embeddings_of_the_one_before(place, tmp_path):
    result = adapt(place, rounds=1, out=tmp_path / "out", log_every=1)
    assert result.losses.keys() == {"loss", "denoising", "pooled"}
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.warmup", "out.round-0"}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"accumulation": 2, "gradient_checkpointing": True}, {"mask_share": 0.3}])
def test_other_settings(place, changes):
    assert adapt(place, **changes, log_every=1).losses.keys() == {"loss", "denoising"}


@pytest.mark.slow
def test_a_base_that_does_not_say_how_it_pools_becomes_a_sentence_encoder(place, tmp_path):
    adapt(place, model=place / "base", out=tmp_path / "out")
    assert SentenceSettings.read(tmp_path / "out").pooling == ("cls",)


@pytest.mark.slow
def test_a_decoder_that_is_there_is_not_warmed_up_again(place, tmp_path):
    warmed = adapt(place, trains="head", keep_head=True, out=tmp_path / "warmed")
    assert type(warmed.model) is hf.BertLMHeadModel
    assert warmed.metrics["drift"] == 0
    with pytest.raises(CheckpointError, match="a decoder in its blocks, which hides later tokens"):
        open_pipeline(tmp_path / "warmed", task="retrieval")
    with pytest.raises(CheckpointError, match="a decoder in its blocks"):
        adapt(place, model=tmp_path / "warmed", objective="masked")
    result = adapt(place, model=tmp_path / "warmed", out=tmp_path / "out")
    assert result.metrics["reconstruction_before"] == pytest.approx(warmed.metrics["reconstruction"], rel=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"warmed", "out"}
    assert type(result.model) is hf.BertForMaskedLM
    assert artifact.verify(tmp_path / "out").max_difference == 0
    ids = torch.tensor([[2, 8, 9, 3]])
    again = hf.AutoModel.from_pretrained(tmp_path / "out")
    assert torch.equal(again(ids).last_hidden_state, result.model.bert(ids).last_hidden_state)
    # A token sees those after it.
    other = torch.tensor([[2, 8, 10, 3]])
    assert not torch.allclose(again(ids).last_hidden_state[:, 0], again(other).last_hidden_state[:, 0])


@pytest.mark.slow
def test_killed_in_every_phase_it_ends_with_the_same_bytes(place, tmp_path):
    def command(out):
        return (
            "adapt", "--model", place / "encoder", "--corpus", place / "text.txt", "--objective", "tsdae",
            "--max-steps", 6, "--head-steps", 4, "--batch-size", 8, "--max-length", 16, "--save-every", 1,
            "--threads", 1, "--resume", "--out", out,
        )  # fmt: skip

    assert forking.run(*command(tmp_path / "whole")).code == 0
    places = [
        tmp_path / "killed.warmup.training" / "checkpoint-2",
        tmp_path / "killed.warmup",
        tmp_path / "killed.training" / "checkpoint-3",
    ]
    kills = sum(forking.killed_when(place.exists, *command(tmp_path / "killed")) for place in places)
    assert kills >= 2
    assert forking.run(*command(tmp_path / "killed")).code == 0
    for name in ("", ".warmup"):
        whole, killed = (
            artifact.read_manifest(tmp_path / f"{folder}{name}").files["model.safetensors"].sha256
            for folder in ("whole", "killed")
        )
        assert whole == killed, name


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "mpnet"}, CheckpointError, "is a `mpnet`, of which Transformers has no decoder"),
        ({"model": "several"}, ConfigError, r"pools by `cls\+mean`"),
        ({"masking": "words"}, ConfigError, "changes nothing without `objective` `masked`"),
        ({"pack": True}, ConfigError, "changes nothing without `objective` `masked`"),
        ({"rounds": 1, "match": "predictions"}, ConfigError, "match `features`"),
        ({"rounds": 1, "match": "weights-l2"}, ConfigError, "match `features`"),
        ({"positions": "mean"}, ConfigError, "changes nothing without a round"),
        ({"normalize": True}, ConfigError, "`normalize` is for images"),
        ({"keep_head": True}, ConfigError, "leave out `keep_head`"),
        ({"objective": "dae"}, ConfigError, "objective"),
    ],
)
def test_what_cannot_be_is_refused_before_work(place, tmp_path, changes, error, message):
    if changes.get("model") == "several":
        zoo.build("bert").save_pretrained(place / "several")
        corpus.tokenizer().save_pretrained(place / "several")
        SentenceSettings(("cls", "mean")).write(place / "several", 48)
    changes = {**changes, "model": place / changes.get("model", "encoder")}
    with pytest.raises(error, match=message):
        adapt(place, **changes, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_images_have_no_sentences(place, tmp_path):
    runs.viewer(tmp_path / "vit")
    with pytest.raises(ConfigError, match="`objective` is tsdae, which is for text"):
        adapt(place, model=tmp_path / "vit", max_length=None)
