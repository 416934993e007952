"""Models with new weights: shapes, configs from anywhere, tokenizers that are learned."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForTextEncoding, LlamaConfig

from slimformer.anatomy import Anatomy
from slimformer.errors import CheckpointError, ConfigError
from slimformer.models.building import LEAST_TOKENS, Shape, build, name_tokens, open_config, resize, train_tokenizer
from tests import zoo

SMALL = Shape(layers=2, hidden=32, heads=4, ffn=48)
TEXTS = ["the film was very good, and the end was not", "a dull plot; a cast of unknowns", "Ünïcödé 🎬 too"] * 20


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family_takes_a_shape(family):
    opener = AutoModelForTextEncoding if family == "t5" else AutoModel
    anatomy = Anatomy.of(build(lambda: opener.from_config(resize(open_config(family), SMALL)), seed=0))
    assert len(anatomy.blocks) == 2
    assert anatomy.hidden == 32
    assert {(block.heads, block.up.shape[0]) for block in anatomy.blocks} == {(4, 48)}


def test_new_weights_are_not_stored_as_those_of_the_model_they_are_like():
    config = open_config("bert")
    config.quantization_config = {"quant_method": "slimformer"}
    assert not hasattr(resize(config, SMALL), "quantization_config")
    assert config.quantization_config  # that of the model is left alone


def test_a_config_comes_from_a_file_a_folder_or_a_family(tmp_path):
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, tie_word_embeddings=True)
    config.save_pretrained(tmp_path / "folder")
    (tmp_path / "decoder.json").write_bytes((tmp_path / "folder" / "config.json").read_bytes())
    for name in (tmp_path / "folder", tmp_path / "decoder.json"):
        opened = open_config(str(name))
        assert (opened.model_type, opened.hidden_size, opened.tie_word_embeddings) == ("llama", 32, True)
    assert open_config("llama").hidden_size == LlamaConfig().hidden_size


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds a list, not an object"),
        (json.dumps({"model_type": "lama"}), "does not describe a model Transformers knows"),
        (json.dumps({"model_type": "whisper"}), "model family `whisper` is not known"),
        (json.dumps({"model_type": "llama", "num_hidden_layers": 10**9}), "at most 2,048 are built"),
    ],
)
def test_a_file_that_holds_no_config_is_refused(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(Exception, match=message) as caught:
        open_config(str(path))
    assert "\n" not in str(caught.value)


def test_a_name_that_is_nothing_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no folder at"):
        open_config(str(tmp_path / "nothing"))


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="`heads` is 5, which does not divide `hidden` 32; choose from 1, 2, 4"):
        resize(open_config("llama"), Shape(hidden=32, heads=5))
    huge = resize(open_config("llama"), Shape(layers=4, hidden=2**17, heads=8))
    with pytest.raises(ConfigError, match=r"this machine has .* GiB of memory; give a smaller"):
        build(lambda: AutoModelForCausalLM.from_config(huge), seed=0)


@pytest.mark.parametrize("causal", [True, False])
def test_a_tokenizer_writes_every_text_and_is_the_same_again(causal):
    one, same = (train_tokenizer(TEXTS, 320, causal=causal, max_length=64) for _ in range(2))
    assert one.backend_tokenizer.to_str() == same.backend_tokenizer.to_str()
    assert LEAST_TOKENS <= len(one) <= 320
    for text in ("the film", "never seen: 漢字, \t tabs and\nlines"):
        assert one.decode(one(text)["input_ids"], skip_special_tokens=True) == text
    assert (one.eos_token_id is None) is not causal
    assert (one.mask_token_id is None) is causal
    if not causal:
        pair = one("the film", "was good")
        assert [pair["input_ids"].count(token) for token in (one.cls_token_id, one.sep_token_id)] == [1, 2]


def test_a_config_is_told_of_its_tokenizer():
    config, tokenizer = open_config("llama"), train_tokenizer(TEXTS, 300, causal=True)
    name_tokens(config, tokenizer)
    assert (config.vocab_size, config.eos_token_id, config.pad_token_id) == (
        len(tokenizer),
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )
