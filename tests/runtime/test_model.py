"""Text encoders on the engine beside what they stand in for: Transformers' pipeline and sentence-transformers."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers as hf

import slimformer
from slimformer.errors import ArtifactError, ConfigError, DataError, SlimformerError
from slimformer.models.sentence import SentenceSettings
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.model import NativeModel
from slimformer.runtime.native import is_built
from tests import runs

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

TEXTS = ["a lovely film", "dull, awful and far too long for what it has to say", "so"]


def classifier(folder, labels=3, **settings):
    """A small random classifier with the tokenizer of MiniLM."""
    runs.reader(folder)
    config = hf.AutoConfig.from_pretrained(folder)
    config.num_labels = labels
    config.update(settings)
    torch.manual_seed(1)
    hf.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("problem", [None, "multi_label_classification", "regression"])
def test_answers_are_those_of_the_pipeline(tmp_path, labels, problem):
    folder = classifier(tmp_path / "model", labels, problem_type=problem)
    pipeline, native = hf.pipeline("text-classification", str(folder)), NativeModel(folder)
    for top_k in (1, 2, None):
        for texts in (TEXTS, TEXTS[0]):
            expected, answers = pipeline(texts, top_k=top_k), native(texts, top_k=top_k)
            assert flat(answers, "label") == flat(expected, "label")
            assert flat(answers, "score") == pytest.approx(flat(expected, "score"), abs=1e-5)


def flat(answers, key):
    return [each[key] for answer in answers for each in (answer if isinstance(answer, list) else [answer])]


def test_a_pair_is_read_as_one(tmp_path):
    folder = classifier(tmp_path / "model")
    expected = hf.pipeline("text-classification", str(folder), top_k=None)({"text": TEXTS[0], "text_pair": TEXTS[1]})
    answer = NativeModel(folder).predict((TEXTS[0], TEXTS[1]), top_k=None)
    assert flat(answer, "score") == pytest.approx(flat(expected, "score"), abs=1e-5)


@pytest.mark.parametrize("made", [hf.DistilBertForSequenceClassification, hf.RobertaForSequenceClassification])
def test_pairs_are_read_where_tokens_have_no_types(tmp_path, made):
    folder = runs.reader(tmp_path)
    config = made.config_class(vocab_size=30522, num_labels=3, pad_token_id=0)
    config.update({"dim": 32, "hidden_size": 32, "n_layers": 1, "num_hidden_layers": 1, "n_heads": 4, "hidden_dim": 64})
    config.update({"num_attention_heads": 4, "intermediate_size": 64, "type_vocab_size": 1})
    made(config).save_pretrained(folder)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "[PAD]"}))
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    expected = hf.pipeline("text-classification", str(folder), top_k=None)(pair)
    answer = NativeModel(folder).predict((TEXTS[0], TEXTS[1]), top_k=None)
    assert flat(answer, "score") == pytest.approx(flat(expected, "score"), abs=1e-5)


def test_many_texts_are_answered_in_batches(tmp_path):
    native = NativeModel(classifier(tmp_path / "model"))
    assert native(TEXTS * 5, batch_size=2) == native(TEXTS * 5)


@pytest.mark.parametrize("pooling", [("mean",), ("cls",), ("cls", "max")])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_those_of_sentence_transformers(tmp_path, pooling, normalize):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = runs.reader(tmp_path / "model")
    settings = SentenceSettings(pooling, normalize, {"ask": "query: "}, "ask", max_length=8)
    settings.write(folder, hf.AutoConfig.from_pretrained(folder).hidden_size)
    peer, native = sentence_transformers.SentenceTransformer(str(folder)), NativeModel(folder)
    np.testing.assert_allclose(native.encode(TEXTS, batch_size=2), peer.encode(TEXTS), atol=1e-5)
    one = native.encode(TEXTS[0])
    assert one.ndim == 1
    np.testing.assert_array_equal(one, native.encode(TEXTS)[0])
    scaled = native.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, rtol=1e-6)


def test_texts_are_cut_to_what_the_folder_says(tmp_path):
    folder = classifier(tmp_path / "model")
    assert NativeModel(folder).max_length == 512
    assert NativeModel(folder, max_length=7).max_length == 7
    for length in (0, 1, 3, "8"):
        with pytest.raises(SlimformerError, match="give"):
            NativeModel(folder, max_length=length)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 9}))
    native = NativeModel(folder)
    assert native.max_length == 9
    assert native("so " * 100) == native("so " * 200)


def test_an_artifact_is_loaded_by_name_of_the_engine_and_without_torch(tmp_path):
    folder = runs.reader(tmp_path / "base")
    for split in ("train", "dev"):
        rows = "".join(f"{split} {n}\t{'ab'[n % 2]}\n" for n in range(8))
        (tmp_path / f"{split}.tsv").write_text(f"text\tlabel\n{rows}")
    more = ("--max-length", 12, "--max-steps", 2, "--quiet")
    done = runs.finetune(folder, "classification", tmp_path, tmp_path / "made", *more)
    assert done.code == 0, done.err
    code = f"""
import sys
import slimformer
model = slimformer.load({str(tmp_path / "made")!r}, engine="native")
assert model.max_length == 12
print(model("row 1")[0]["label"])
assert not {{"torch", "transformers"}} & set(sys.modules), "imported"
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() in ("a", "b")
    with pytest.raises(ConfigError, match="`engine` is `tpu`"):
        slimformer.load(tmp_path / "made", engine="tpu")
    with pytest.raises(ConfigError, match="nothing else"):
        slimformer.load(tmp_path / "made", dtype="float16", engine="native")
    with pytest.raises(ArtifactError):
        slimformer.load(folder, engine="native")


def test_what_cannot_be_asked_says_so(tmp_path):
    made = NativeModel(classifier(tmp_path / "made"))
    bare = NativeModel(runs.reader(tmp_path / "bare"))
    for call, error, words in (
        (lambda: made.encode("so"), ConfigError, "ask it with `predict`"),
        (lambda: bare.predict("so"), ConfigError, "ask it with `encode`"),
        (lambda: made.predict([]), DataError, "give at least one"),
        (lambda: bare.encode([]), DataError, "give at least one"),
        (lambda: made.predict(5), DataError, "is no text"),
        (lambda: made.predict([None]), DataError, "is no text"),
        (lambda: made.predict(("a", "b", "c")), DataError, "is no text"),
        (lambda: made.predict("\ud800"), DataError, "fails at one of the texts"),
        (lambda: bare.encode([("a", "b")]), DataError, "is no text"),
        (lambda: made.predict("so", top_k=0), ConfigError, "`top_k` is `0`"),
        (lambda: bare.encode("so", batch_size=0), SlimformerError, "batch-size` is `0`"),
        (lambda: NativeModel(runs.viewer(tmp_path / "images")), EngineError, "reads images"),
    ):
        with pytest.raises(error, match=words):
            call()
    SentenceSettings(("lasttoken",)).write(tmp_path / "bare", bare.encode("so").shape[0])
    with pytest.raises(EngineError, match="pools by `lasttoken`"):
        NativeModel(tmp_path / "bare").encode("so")
    prompted = SentenceSettings(("mean",), False, {"ask": "query: "}, "ask", include_prompt=False)
    prompted.write(tmp_path / "bare", 32)
    with pytest.raises(EngineError, match="leaves its prompt out"):
        NativeModel(tmp_path / "bare")
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    (tmp_path / "made" / "config.json").write_text(json.dumps({**config, "id2label": None}))
    assert NativeModel(tmp_path / "made").predict("so")[0]["label"].startswith("LABEL_")
    tokenizer = json.loads((tmp_path / "made" / "tokenizer.json").read_text())
    tokenizer["post_processor"]["single"].append({"SpecialToken": {"id": "[NONE]", "type_id": 0}})
    (tmp_path / "made" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises((EngineError, DataError)):
        NativeModel(tmp_path / "made").predict("so")
    (tmp_path / "made" / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineError, match=r"no tokenizer\.json that can be read"):
        NativeModel(tmp_path / "made")
