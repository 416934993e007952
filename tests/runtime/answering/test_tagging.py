"""Entities beside those of Transformers' pipeline."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as hf

from slimformer.errors import ConfigError
from slimformer.runtime.model import NativeModel
from slimformer.runtime.native import is_built
from tests import runs
from tests.parameters import slow

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "misc"]
TEXTS = [
    "Angela Merkel flew to Reykjavik; unbelievably, nobody at the tokenization congress noticed.",
    "so",
    "a ☃ in Ouagadougou",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tagger whose weights are large, so that neighbours get different labels."""
    folder = runs.reader(tmp_path_factory.mktemp("tagger"))
    config = hf.AutoConfig.from_pretrained(folder)
    config.update({"id2label": dict(enumerate(LABELS)), "label2id": {name: n for n, name in enumerate(LABELS)}})
    torch.manual_seed(3)
    model = hf.BertForTokenClassification(config)
    torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight, std=0.5)
    torch.nn.init.normal_(model.classifier.weight, std=0.5)
    model.save_pretrained(folder)
    return folder


def check_alike(answers, expected):
    """Scores agree nearly, all else exactly."""
    assert len(answers) == len(expected)
    for one, other in zip(answers, expected, strict=True):
        assert one.pop("score") == pytest.approx(float(other.pop("score")), abs=1e-5)
        assert list(one.items()) == list(other.items())


@pytest.mark.parametrize("strategy", ["none", "simple", *slow(["first", "max", "average"])])
@pytest.mark.parametrize("ignored", [None, ["I-PER", "PER"]])
def test_entities_are_those_of_the_pipeline(folder, strategy, ignored):
    pipeline, native = hf.pipeline("token-classification", str(folder)), NativeModel(folder)
    settings = {"aggregation_strategy": strategy, "ignore_labels": ignored}
    expected, answers = pipeline(TEXTS, **settings), native(TEXTS, batch_size=2, **settings)
    assert any(expected)
    for one, other in zip(answers, expected, strict=True):
        check_alike(one, other)
    check_alike(native.predict(TEXTS[0], **settings), pipeline(TEXTS[0], **settings))


def test_words_are_told_by_spaces_where_a_tokenizer_has_no_prefix(tmp_path, folder):
    """A tokenizer of whole words, whose pieces nothing marks, as those of RoBERTa."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 64}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    pipeline, native = hf.pipeline("token-classification", str(tmp_path)), NativeModel(tmp_path)
    for strategy in ("simple", "first"):
        settings = {"aggregation_strategy": strategy, "ignore_labels": []}
        check_alike(native(TEXTS[0], **settings), pipeline(TEXTS[0], **settings))


def test_settings_that_it_has_not_are_refused_by_name(folder):
    native = NativeModel(folder)
    for settings, words in (
        ({"aggregation_strategy": "best"}, "`aggregation_strategy` is `best`; give one of: none, simple, first"),
        ({"ignore_labels": "O"}, "give a list of labels"),
        ({"stride": 8}, "`stride` is `8`.*cut the text before"),
        ({"is_split_into_words": True}, "its words joined by spaces"),
        ({"top_k": 2}, "`top_k` is `2`"),
    ):
        with pytest.raises(ConfigError, match=words):
            native(TEXTS, **settings)
