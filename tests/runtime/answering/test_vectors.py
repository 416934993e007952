"""Vectors beside those of sentence-transformers."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import transformers as hf

from slimformer.errors import ConfigError, DataError
from slimformer.models.sentence import PROMPTS, SentenceSettings
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.model import NativeModel
from slimformer.runtime.native import is_built
from tests import runs

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

TEXTS = ["a lovely film", "dull, awful and far too long for what it has to say", "so"]
ASK = {"ask": "query: ", "tell": "what a passage says: "}


def encoder(folder, *settings, **more):
    runs.reader(folder)
    SentenceSettings(*settings, **more).write(folder, hf.AutoConfig.from_pretrained(folder).hidden_size)
    return folder


@pytest.fixture
def transformers_of_sentences():
    return pytest.importorskip("sentence_transformers").SentenceTransformer


@pytest.mark.parametrize("pooling", [("mean",), ("cls",), ("cls", "max")])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_those_of_sentence_transformers(tmp_path, transformers_of_sentences, pooling, normalize):
    folder = encoder(tmp_path / "model", pooling, normalize, ASK, "ask", max_length=8)
    peer, native = transformers_of_sentences(str(folder)), NativeModel(folder)
    np.testing.assert_allclose(native.encode(TEXTS, batch_size=2), peer.encode(TEXTS), atol=1e-5)
    one = native.encode(TEXTS[0])
    assert one.ndim == 1
    np.testing.assert_array_equal(one, native.encode(TEXTS)[0])
    for settings in (
        {"normalize_embeddings": True},
        {"prompt_name": "tell"},
        {"prompt": "a prompt of its own: "},
        {"truncate_dim": 5, "normalize_embeddings": True},
        {"batch_size": 1, "show_progress_bar": False, "convert_to_numpy": True, "convert_to_tensor": False},
    ):
        np.testing.assert_allclose(native.encode(TEXTS, **settings), peer.encode(TEXTS, **settings), atol=1e-5)
    scaled = native.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("pooling", [("mean",), ("cls", "max")])
def test_a_prompt_is_left_out_of_the_pooling_where_the_folder_says_so(tmp_path, transformers_of_sentences, pooling):
    folder = encoder(tmp_path / "model", pooling, False, ASK, "ask", include_prompt=False)
    peer, native = transformers_of_sentences(str(folder)), NativeModel(folder)
    for settings in ({}, {"prompt_name": "tell"}, {"prompt": ""}):
        np.testing.assert_allclose(native.encode(TEXTS, **settings), peer.encode(TEXTS, **settings), atol=1e-5)
    included = encoder(tmp_path / "included", pooling, False, ASK, "ask")
    assert np.abs(native.encode(TEXTS) - NativeModel(included).encode(TEXTS)).max() > 1e-3


@pytest.mark.parametrize("name", [None, "cosine", "dot", "euclidean", "manhattan"])
def test_vectors_are_compared_as_the_folder_says(tmp_path, transformers_of_sentences, name):
    folder = encoder(tmp_path / "model")
    if name is not None:
        (folder / PROMPTS).write_text(json.dumps({"similarity_fn_name": name}))
    peer, native = transformers_of_sentences(str(folder)), NativeModel(folder)
    one, other = native.encode(TEXTS), native.encode(TEXTS[:2])
    np.testing.assert_allclose(native.similarity(one, other), peer.similarity(one, other), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(native.similarity(one[0], other), peer.similarity(one[0], other), rtol=1e-4, atol=1e-3)


def test_a_bar_shows_how_far_it_is(tmp_path, capsys, monkeypatch):
    native = NativeModel(encoder(tmp_path / "model"))
    shown = native.encode(TEXTS, batch_size=1, show_progress_bar=True)
    assert "3/3" in capsys.readouterr().err
    np.testing.assert_array_equal(shown, native.encode(TEXTS))
    assert "/3" not in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ConfigError, match="drawn by tqdm"):
        native.encode(TEXTS, show_progress_bar=True)


def test_what_it_has_not_is_refused_by_name(tmp_path):
    folder = encoder(tmp_path / "model", ("mean",), False, ASK)
    native = NativeModel(folder)
    for settings, words in (
        ({"convert_to_tensor": True}, r"make tensors by torch\.from_numpy"),
        ({"convert_to_numpy": False}, "vectors are in NumPy"),
        ({"output_value": "token_embeddings"}, "rows of tokens from `encoder.run`"),
        ({"precision": "int8"}, "`precision` is `int8`"),
        ({"device": "cuda"}, "computes on the CPU"),
        ({"prompt_name": "sing"}, "`prompt_name` is `sing`, and .* has `ask`, `tell`"),
        ({"prompt": 5}, "`prompt` is `5`"),
        ({"pool": {}}, "`pool` is `{}`"),
    ):
        with pytest.raises(ConfigError, match=words):
            native.encode(TEXTS, **settings)
    for table in (np.zeros((2, 3)), np.zeros((2, 2, 32))):
        with pytest.raises(DataError, match="give such as `encode` makes"):
            native.similarity(native.encode(TEXTS), table)
    (folder / PROMPTS).write_text(json.dumps({"similarity_fn_name": "maxsim"}))
    with pytest.raises(EngineError, match="measures by `maxsim`; the engine does by cosine, dot"):
        native.similarity(native.encode(TEXTS), native.encode(TEXTS))
    (folder / PROMPTS).write_text(json.dumps({"similarity_fn_name": ["dot"]}))
    with pytest.raises(EngineError, match=r"measures by `\['dot'\]`; the engine does by cosine, dot"):
        native.similarity(native.encode(TEXTS), native.encode(TEXTS))
    for content, words in (("{", r"cannot be read"), ("[5]", r"holds `\[5\]`, which is no object")):
        (folder / PROMPTS).write_text(content)
        with pytest.raises(EngineError, match=words):
            native.similarity(native.encode(TEXTS), native.encode(TEXTS))
    with pytest.raises(EngineError, match="pools by `lasttoken`"):
        NativeModel(encoder(tmp_path / "last", ("lasttoken",)))
