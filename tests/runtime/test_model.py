"""Text encoders on the engine beside what they stand in for: Transformers' pipeline and sentence-transformers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import transformers as hf

import slimformer
from slimformer.errors import ArtifactError, ConfigError, DataError, SlimformerError
from slimformer.runtime.checkpoint import EngineError
from slimformer.runtime.model import NativeModel
from slimformer.runtime.native import is_built
from tests import runs

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

PAIR = {"text": "a lovely film", "text_pair": "dull, awful and far too long"}
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
    for settings in ({}, {"top_k": 1}, {"top_k": 2}, {"top_k": None}, {"function_to_apply": "sigmoid"}):
        for texts in (TEXTS, TEXTS[0], PAIR, [PAIR, {"text": "so"}], [TEXTS[0]]):
            check_alike(native(texts, **settings), pipeline(texts, **settings))


def check_alike(answers, expected):
    """Lists and dicts of one form, with scores that agree nearly."""
    assert type(answers) is type(expected)
    if isinstance(expected, list):
        assert len(answers) == len(expected)
        for pair in zip(answers, expected, strict=True):
            check_alike(*pair)
    else:
        assert answers == {"label": expected["label"], "score": pytest.approx(expected["score"], abs=1e-5)}


def flat(answers, key):
    return [each[key] for answer in answers for each in (answer if isinstance(answer, list) else [answer])]


def test_long_texts_are_cut_as_in_the_pipeline_or_refused(tmp_path):
    folder = classifier(tmp_path / "model")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": 9, "tokenizer_class": "BertTokenizer"})
    )
    pipeline, native = hf.pipeline("text-classification", str(folder)), NativeModel(folder)
    texts = ["so " * 5, "dull " * 20]
    check_alike(native(texts, truncation=True, batch_size=1), pipeline(texts, truncation=True, batch_size=1))
    check_alike(native(texts[:1], truncation=False), pipeline(texts[:1], truncation=False))
    with pytest.raises(DataError, match="has more than 9 tokens; cut it, or leave out `truncation`"):
        native(texts, truncation=False)
    with pytest.raises(ConfigError, match="`truncation` is `only_first`"):
        native(texts, truncation="only_first")


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
        (lambda: made.predict({"text": "a", "label": "b"}), DataError, "has the key `label`; give `text` and `text_p"),
        (lambda: made.predict("so", function_to_apply="tanh"), ConfigError, "give one of: sigmoid, softmax, none"),
        (lambda: made.predict("so", max_length=5), ConfigError, r"NativeModel\(folder, max_length=...\)"),
        (lambda: made.predict("so", device="cuda"), ConfigError, "`device` is `cuda`.*computes on the CPU"),
        (lambda: made.predict("so", colour=1), ConfigError, "`colour` is `1`.*leave it out"),
    ):
        with pytest.raises(error, match=words):
            call()
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    (tmp_path / "made" / "config.json").write_text(json.dumps({**config, "id2label": None}))
    assert NativeModel(tmp_path / "made").predict("so")[0]["label"].startswith("LABEL_")
    tokenizer = json.loads((tmp_path / "made" / "tokenizer.json").read_text())
    unknown = {**tokenizer, "model": {**tokenizer["model"], "unk_token": "[NONE]"}}
    (tmp_path / "made" / "tokenizer.json").write_text(json.dumps(unknown))
    with pytest.raises(DataError, match="fails at one of the texts: WordPiece"):
        NativeModel(tmp_path / "made").predict("\u2603")
    tokenizer["post_processor"]["single"].append({"SpecialToken": {"id": "[NONE]", "type_id": 0}})
    (tmp_path / "made" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises((EngineError, DataError)):
        NativeModel(tmp_path / "made").predict("so")
    (tmp_path / "made" / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineError, match=r"no tokenizer\.json that can be read"):
        NativeModel(tmp_path / "made")


#: What lies in a file of settings and is no object that can be read → what is said of it.
UNREADABLE = {
    "{": r"cannot be read \(.*; copy it again",
    "[1]": r"holds `\[1\]`, which is no object; copy it again",
    "null": "holds `None`, which is no object; copy it again",
}


@pytest.mark.parametrize("content", UNREADABLE)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_settings_that_cannot_be_read_are_refused(tmp_path, name, content):
    folder = classifier(tmp_path / "model")
    (folder / name).write_text(content)
    with pytest.raises(EngineError, match=rf"/model/{name}` {UNREADABLE[content]}") as refused:
        NativeModel(folder)
    assert "\n" not in str(refused.value)


def test_a_missing_file_of_settings_is_an_empty_one_where_it_may_be(tmp_path):
    folder = classifier(tmp_path / "model")
    answer = NativeModel(folder).predict(TEXTS)
    settings = folder / "tokenizer_config.json"
    settings.unlink(missing_ok=True)
    assert NativeModel(folder).predict(TEXTS) == answer
    settings.symlink_to(tmp_path / "nowhere")  # as in a cache that was cleared in part
    with pytest.raises(EngineError, match=r"tokenizer_config\.json` cannot be read"):
        NativeModel(folder)
    settings.unlink()
    settings.mkdir()
    with pytest.raises(EngineError, match=r"tokenizer_config\.json` cannot be read .*it is a folder"):
        NativeModel(folder)
    settings.rmdir()
    (folder / "config.json").unlink()
    with pytest.raises(EngineError, match=r"/model` has no config\.json; give the folder of a model"):
        NativeModel(folder)
