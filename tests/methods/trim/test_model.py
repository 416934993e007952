"""Models of every family compute the same with fewer pieces, head or not."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as hf
from transformers import AutoModel, AutoTokenizer

from slimformer import models
from slimformer.errors import AnatomyError, ConfigError
from slimformer.methods.trim import (
    choose_pieces,
    count_pieces,
    model_pieces,
    trim_model,
    trim_tokenizer,
)
from tests import zoo
from tests.methods.trim import toys

#: Classes with a row of the head per token.
LANGUAGE = {
    family: hf.AutoModelForCausalLM if family in zoo.CAUSAL else hf.AutoModelForMaskedLM
    for family in zoo.TEXTS
    if family != "t5"  # its encoders have no such head
}


def language_model(family: str, **settings):
    config = zoo.CONFIGS[family]()
    for name, value in settings.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    return zoo.enliven(LANGUAGE[family].from_config(config)).eval()


def chosen(model, inputs) -> list[int]:
    """The pieces of a batch, those the model needs, and a few more."""
    return sorted({*inputs["input_ids"].flatten().tolist(), *model_pieces(model), 30, 60, 98})


def renumber(inputs, kept):
    new = {old: index for index, old in enumerate(kept)}
    return {**inputs, "input_ids": torch.tensor([[new[each] for each in row] for row in inputs["input_ids"].tolist()])}


@torch.no_grad()
def run(model, inputs):
    output = model(**inputs, output_hidden_states=True)
    return output.hidden_states, output[0]


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("family", zoo.TEXTS)
def test_bare_models_compute_the_very_same(family, padding):
    model = zoo.build(family)
    inputs = zoo.inputs_for(family, padding)
    kept = chosen(model, inputs)
    hidden, last = run(model, inputs)
    trim_model(model, kept)
    new_hidden, new_last = run(model, renumber(inputs, kept))
    assert torch.equal(last, new_last)
    assert all(map(torch.equal, hidden, new_hidden))
    assert model.config.vocab_size == len(kept) < 99


@pytest.mark.parametrize("family", zoo.TEXTS)
def test_models_with_a_head(family):
    model = zoo.build_headed(family)
    if family == "qwen2":
        model.config.pad_token_id = 0
    inputs = zoo.inputs_for(family)
    if family == "mpnet":
        inputs = {name: value[None] for name, value in inputs.items()}
        flat = {name: value[0] for name, value in inputs.items()}
    else:
        flat = inputs
    kept = chosen(model, flat)
    hidden, logits = run(model, inputs)
    trim_model(model, kept)
    again = renumber(flat, kept)
    new_hidden, new_logits = run(model, {n: v[None] for n, v in again.items()} if family == "mpnet" else again)
    assert all(map(torch.equal, hidden, new_hidden))
    if logits.shape[-1] == 99:
        torch.testing.assert_close(new_logits, logits[..., kept], rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(new_logits, logits)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", LANGUAGE)
def test_language_models_keep_their_ties_and_load_again(family, tied, tmp_path):
    model = language_model(family, tie_word_embeddings=tied)
    inputs = zoo.inputs_for(family)
    kept = chosen(model, inputs)
    hidden, logits = run(model, inputs)
    parameters = len(list(model.parameters()))
    trim_model(model, kept)
    assert len(list(model.parameters())) == parameters
    new_hidden, new_logits = run(model, renumber(inputs, kept))
    assert all(map(torch.equal, hidden, new_hidden))
    # Products of another width may be summed in another order.
    torch.testing.assert_close(new_logits, logits[..., kept], rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path)
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(run(loaded.eval(), renumber(inputs, kept))[1], new_logits)
    fresh = type(model)(copy.deepcopy(model.config))
    assert {name: each.shape for name, each in model.named_parameters()} == {
        name: each.shape for name, each in fresh.named_parameters()
    }
    assert fresh.get_input_embeddings().padding_idx == model.get_input_embeddings().padding_idx
    assert model.get_input_embeddings().num_embeddings == len(kept)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_special_tokens_get_their_new_ids(family):
    model = language_model(family, pad_token_id=50, eos_token_id=[60, 70], bos_token_id=7)
    model.generation_config.eos_token_id = [60, 70]
    model.generation_config.suppress_tokens = [50, 51, 80]
    model.generation_config.bad_words_ids = [[80], [50, 51]]
    assert model_pieces(model) >= {7, 50, 60, 70}
    kept = sorted({*model_pieces(model), 1, 80})
    trim_model(model, kept)
    assert model.config.pad_token_id == kept.index(50)
    assert model.config.bos_token_id == kept.index(7)
    assert model.config.eos_token_id == [kept.index(60), kept.index(70)]
    assert model.generation_config.eos_token_id == [kept.index(60), kept.index(70)]
    assert model.generation_config.suppress_tokens == [kept.index(50), kept.index(80)]
    assert model.generation_config.bad_words_ids == [[kept.index(80)]]
    assert model.get_input_embeddings().padding_idx == (kept.index(50) if family == "llama" else None)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "mpnet"])
def test_positions_stay_where_they_are_counted_from_the_padding_token(family):
    settings = {} if family == "mpnet" else {"pad_token_id": 7}  # MPNet's is always 1
    model = language_model(family, **settings)
    pad = settings.get("pad_token_id", 1)
    assert set(range(pad + 1)) <= model_pieces(model)
    with pytest.raises(ConfigError, match=r"piece 0 is not among those kept, but the model needs it"):
        trim_model(model, range(1, 90))
    inputs = zoo.inputs_for(family)
    inputs["input_ids"][inputs["attention_mask"] == 0] = pad
    kept = chosen(model, inputs)
    hidden, _ = run(model, inputs)
    trim_model(model, kept)
    assert model.config.pad_token_id == pad
    assert all(map(torch.equal, hidden, run(model, renumber(inputs, kept))[0]))


def test_precision_device_and_training_stay():
    model = zoo.build("bert").to(torch.bfloat16)
    model.embeddings.word_embeddings.weight.requires_grad_(False)
    kept = sorted(model_pieces(model) | set(range(40)))
    trim_model(model, kept)
    weight = model.embeddings.word_embeddings.weight
    assert weight.dtype == torch.bfloat16
    assert not weight.requires_grad
    assert weight.shape == (len(kept), 48)
    assert not model.training


def test_nothing_to_drop():
    model = zoo.build("bert")
    before = model.embeddings.word_embeddings.weight
    assert trim_model(model, range(99)) is model
    assert model.embeddings.word_embeddings.weight is before


def test_what_cannot_be_trimmed():
    with pytest.raises(AnatomyError, match="family `vit` has no word embedding"):
        trim_model(zoo.build("vit"), range(9))
    model = zoo.build("bert")
    with pytest.raises(ConfigError, match="piece 99 has no row in the embedding of 99"):
        trim_model(model, [0, 99])
    with pytest.raises(ConfigError, match="do not rise from 0 on"):
        trim_model(model, [0, 5, 3])
    torch.nn.utils.parametrize.register_parametrization(model.embeddings.word_embeddings, "weight", torch.nn.Identity())
    with pytest.raises(AnatomyError, match=r"`embeddings.word_embeddings.weight` is no plain weight"):
        trim_model(model, range(50))


@pytest.mark.slow
def test_minilm_on_the_docstrings_of_python(tmp_path):
    folder = models.resolve("minilm")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    texts = toys.docstrings()
    counts = count_pieces(tokenizer, texts)
    kept = choose_pieces(tokenizer, counts, coverage=0.995, always=model_pieces(model))
    assert len(kept) < 6000
    split = tokenizer(texts, verbose=False)["input_ids"]
    covered = [text for text, each in zip(texts, split, strict=True) if set(each) <= set(kept)]
    assert 0.8 * len(texts) < len(covered) < len(texts)
    sample = [*covered[:: len(covered) // 16], "a [MASK] b"]
    before = tokenizer(sample, padding=True, truncation=True, max_length=128, return_tensors="pt")
    with torch.no_grad():
        expected = model(**before).last_hidden_state
    trim_model(model, kept).save_pretrained(tmp_path)
    trim_tokenizer(tokenizer, kept).save_pretrained(tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path).eval()
    after = tokenizer(sample, padding=True, truncation=True, max_length=128, return_tensors="pt")
    assert torch.equal(torch.tensor(kept)[after["input_ids"]], before["input_ids"])
    with torch.no_grad():
        assert torch.equal(model(**after).last_hidden_state, expected)


def test_a_real_decoder_predicts_the_same(stories):
    tokenizer = AutoTokenizer.from_pretrained(stories)
    model = hf.AutoModelForCausalLM.from_pretrained(stories).eval()
    text = "Once upon a time, there was a little girl named Lily. She loved to play outside."
    kept = choose_pieces(
        tokenizer,
        count_pieces(tokenizer, [text, "One day, her mom was happy."]),
        coverage=1.0,
        always=model_pieces(model),
    )
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
        trim_model(model, kept)
        new_logits = model(**trim_tokenizer(tokenizer, kept)(text, return_tensors="pt")).logits
    assert len(kept) < 600
    torch.testing.assert_close(new_logits, logits[..., kept], rtol=1e-5, atol=1e-5)
