"""How outputs become one vector, in NumPy and in torch, and the files of sentence-transformers that say so."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from slimformer import models
from slimformer.errors import CheckpointError
from slimformer.models.pooling import normalize, pool
from slimformer.models.sentence import FLAGS, SentenceSettings
from tests import corpus, runs

HIDDEN = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(3))
MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])

#: Way of pooling → the vector of the hidden states of real tokens, [tokens, width].
SLOW = {
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(0),
    "mean": lambda rows: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / np.sqrt(len(rows)),
    "weightedmean": lambda rows: np.average(rows, axis=0, weights=np.arange(1, len(rows) + 1)),
    "lasttoken": lambda rows: rows[-1],
}


@pytest.mark.parametrize("way", FLAGS)
def test_every_way_of_pooling_skips_padding_on_either_side(way):
    rows = [hidden[mask.astype(bool)] for hidden, mask in zip(HIDDEN.numpy(), MASK.numpy(), strict=True)]
    expected = np.stack([SLOW[way](each) for each in rows])
    np.testing.assert_allclose(pool(HIDDEN, MASK, way).numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pool(HIDDEN.numpy(), MASK.numpy(), way), expected, rtol=1e-5, atol=1e-6)
    whole = np.stack([SLOW[way](each) for each in HIDDEN.numpy()])
    np.testing.assert_allclose(pool(HIDDEN, None, way).numpy(), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pool(HIDDEN.numpy(), None, way), whole, rtol=1e-5, atol=1e-6)


def test_several_ways_are_joined():
    both = pool(HIDDEN, MASK, ("cls", "mean"))
    assert torch.equal(both, torch.cat([pool(HIDDEN, MASK, "cls"), pool(HIDDEN, MASK, "mean")], dim=1))
    assert pool(HIDDEN.numpy(), MASK.numpy(), ("cls", "mean")).shape == (3, 8)


def test_a_text_without_tokens_has_a_finite_mean():
    assert torch.isfinite(pool(HIDDEN, torch.zeros_like(MASK))).all()
    assert np.isfinite(pool(HIDDEN.numpy(), np.zeros_like(MASK.numpy()))).all()


def test_scaled_to_length_one():
    vectors = np.array([[3.0, 4.0], [0.0, 0.0]])
    assert normalize(vectors).tolist() == [[0.6, 0.8], [0.0, 0.0]]


def test_minilm_says_what_it_is():
    assert SentenceSettings.of("minilm") == SentenceSettings(("mean",), normalize=True, max_length=256)


def test_a_plain_model_says_nothing(tmp_path):
    assert SentenceSettings.read(tmp_path) is None
    assert SentenceSettings.of(corpus.model_folder(tmp_path / "model")) is None


@pytest.mark.parametrize(
    "settings",
    [
        SentenceSettings(),
        SentenceSettings(("cls",), normalize=True, max_length=77),
        SentenceSettings(("mean", "cls")),
        SentenceSettings(("max", "mean"), prompts={"query": "query: ", "none": ""}, default_prompt="query"),
        SentenceSettings(("lasttoken",), prompts={"q": "Ünïcode → "}, include_prompt=False),
    ],
)
def test_what_is_written_is_read(settings, tmp_path):
    settings.write(tmp_path, 32)
    assert SentenceSettings.read(tmp_path) == settings


@pytest.mark.parametrize("mode", ["cls", ["mean", "max"]])
def test_the_newer_spelling_of_the_pooling(mode, tmp_path):
    SentenceSettings().write(tmp_path, 8)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 8, "pooling_mode": mode}))
    settings = SentenceSettings.read(tmp_path)
    assert settings.pooling == ((mode,) if isinstance(mode, str) else tuple(mode))


def test_what_cannot_be_carried_along_is_refused(tmp_path):
    SentenceSettings().write(tmp_path, 8)
    modules = json.loads((tmp_path / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (tmp_path / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(CheckpointError, match=r"has a step `Dense`, which cannot be carried along; remove"):
        SentenceSettings.read(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(modules[:1]))
    with pytest.raises(CheckpointError, match="has no pooling"):
        SentenceSettings.read(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "attention"}')
    with pytest.raises(CheckpointError, match="there is no pooling `attention`; known: cls, max"):
        SentenceSettings.read(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1_Pooling/config.json"):
        SentenceSettings.read(tmp_path)
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(CheckpointError, match="is not valid JSON"):
        SentenceSettings.read(tmp_path)
    with pytest.raises(CheckpointError, match="there is no prompt `query`; the sentence encoder has `passage`"):
        SentenceSettings(prompts={"passage": ""}, default_prompt="query")


@pytest.mark.parametrize("settings", [SentenceSettings(("cls",), normalize=True), SentenceSettings(("mean", "max"))])
def test_sentence_transformers_reads_the_same(settings, tmp_path):
    """Their own encoder and our pooling of the model's outputs give one vector."""
    library = pytest.importorskip("sentence_transformers")
    folder = corpus.model_folder(tmp_path / "model")
    settings.write(folder, 32)
    text = "the film was very good and fine"
    expected = library.SentenceTransformer(str(folder), device="cpu").encode([text], convert_to_numpy=True)
    done = runs.run("predict", folder, text, "--json")
    found = np.array([json.loads(done.out)["embedding"]])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_evaluation_pools_as_recorded(tmp_path):
    """The same weights measured twice; only what lies beside them differs."""
    folder, rows = corpus.model_folder(tmp_path / "model"), ["sentence1\tsentence2\tscore"]
    rows += [
        f"{' '.join(corpus.WORDS[n : n + 4])}\t{' '.join(corpus.WORDS[n + 2 : n + 9])}\t{n % 5}" for n in range(12)
    ]
    (tmp_path / "dev.tsv").write_text("\n".join(rows) + "\n")

    def measured(model):
        done = runs.run("evaluate", model, "--task", "similarity", "--data", tmp_path / "dev.tsv", "--json")
        return done.json["metrics"]

    plain = measured(folder)
    mean, first = (shutil.copytree(folder, tmp_path / way) for way in ("mean", "cls"))
    SentenceSettings().write(mean, 32)
    SentenceSettings(("cls",)).write(first, 32)
    assert measured(mean) == plain
    assert measured(first) != plain


@pytest.fixture
def similar(tmp_path):
    """Pairs of texts, some longer than five tokens, and the cosine of what `predict` says of each as their score."""

    def write(model):
        texts = [" ".join(corpus.WORDS[n : n + 3 + n % 6]) for n in range(16)]
        (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
        done = runs.run("predict", model, "--file", tmp_path / "texts.txt", "--json")
        vectors = np.array([json.loads(line)["embedding"] for line in done.out.splitlines()])
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        rows = [f"{texts[n]}\t{texts[n + 8]}\t{float(unit[n] @ unit[n + 8])!r}" for n in range(8)]
        data = tmp_path / "dev.tsv"
        data.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
        return data

    return write


@pytest.mark.parametrize(
    "settings",
    [
        SentenceSettings(prompts={"query": "the very bad plot "}, default_prompt="query"),
        SentenceSettings(max_length=5),
        SentenceSettings(("cls",), prompts={"query": "not "}, default_prompt="query", max_length=6),
    ],
)
def test_evaluation_reads_texts_as_prediction_does(settings, similar, tmp_path):
    """Scores that are the cosines of the predicted vectors are met exactly; those of another reading are not."""
    plain = corpus.model_folder(tmp_path / "plain")
    folder = shutil.copytree(plain, tmp_path / "model")
    settings.write(folder, 32)

    def pearson(model, data):
        done = runs.run("evaluate", model, "--task", "similarity", "--data", data, "--json")
        return done.json["metrics"]["pearson"]

    data = similar(folder)
    assert pearson(folder, data) == pytest.approx(1, abs=1e-6)
    assert pearson(plain, data) < 1 - 1e-4


def test_a_prompt_that_is_not_pooled_is_refused_by_both(tmp_path):
    folder = corpus.model_folder(tmp_path / "model")
    SentenceSettings(prompts={"query": "the "}, default_prompt="query", include_prompt=False).write(folder, 32)
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tscore\ngood\tbad\t1\nfine\tdull\t2\n")
    for task in ("similarity", "retrieval"):
        done = runs.run("evaluate", folder, "--task", task, "--data", tmp_path / "dev.tsv")
        done.refused("leaves its prompt out of the pooling")
    assert "leaves its prompt out of the pooling" in runs.run("predict", folder, "good").err


def test_the_alias_is_resolved_first():
    assert SentenceSettings.of("minilm") == SentenceSettings.read(models.resolve("minilm"))


MODULES = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", None, "holds null"),
        ("modules.json", MODULES[1:], "has the steps `Pooling`"),
        ("modules.json", [*MODULES, MODULES[1]], "has the steps"),
        ("modules.json", [MODULES[0], {"type": "x.Pooling", "path": "../1_Pooling"}], "no folder inside"),
        ("modules.json", [MODULES[0], {"type": "x.Pooling", "path": "x" * 5_000}], "no folder inside"),
        ("modules.json", [MODULES[0], {"type": "x.Pooling", "path": 5}], "no folder inside"),
        ("1_Pooling/config.json", {"pooling_mode": 5}, "has the pooling_mode `5`"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean"] * 3}, "is not a list that names each way once"),
        ("1_Pooling/config.json", {"pooling_mode": []}, "has the pooling_mode"),
        ("1_Pooling/config.json", {"pooling_mode": [["mean"]]}, "has the pooling_mode"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": "false"}, "has the pooling_mode_cls_token `false`"),
        ("1_Pooling/config.json", {"pooling_mode_foo": True}, "there is no pooling `pooling_mode_foo`"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "has the pooling_mode `none`"),
        ("1_Pooling/config.json", {"include_prompt": "x"}, "has the include_prompt `x`"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "has the max_seq_length `0`"),
        ("sentence_bert_config.json", {"max_seq_length": "x"}, "has the max_seq_length `x`"),
        ("sentence_bert_config.json", [], "which is not a table of settings"),
        ("config_sentence_transformers.json", {"prompts": {"q": "x" * 70_000}}, "of at most 65,536 characters"),
        ("config_sentence_transformers.json", {"prompts": {"q": 5}}, "which is not an object of texts"),
        ("config_sentence_transformers.json", {"prompts": {"q": ""}, "default_prompt_name": []}, "is not a text"),
    ],
)
def test_files_that_say_what_no_sentence_encoder_does_are_refused(file, content, message, tmp_path):
    SentenceSettings().write(tmp_path, 8)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        SentenceSettings.read(tmp_path)
