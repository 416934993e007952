"""Tokenizers really use their new pieces and split other text as before; models get means for them."""

from __future__ import annotations

import copy
import random
from itertools import pairwise

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

from slimformer import models
from slimformer.errors import AnatomyError, ConfigError
from slimformer.methods.extend import (
    NewPiece,
    choose_new_pieces,
    compare_extended,
    extend_model,
    extend_tokenizer,
    extend_vocabulary,
)
from tests import zoo
from tests.methods.extend.test_choosing import random_texts
from tests.methods.trim import toys
from tests.parameters import slow

AWKWARD = {
    "bpe": toys.random_bpe,
    "bpe, whole words first": lambda seed: toys.random_bpe(seed, ignore_merges=True),
    "bpe, unknown fused": lambda seed: toys.random_bpe(seed, fuse_unk=True),
    "unigram": toys.random_unigram,
    "wordpiece": toys.random_wordpiece,
}
TEXTS = st.lists(st.text("αβγδε", min_size=1, max_size=12), min_size=1, max_size=4).map(" ".join)
#: Those whose new pieces stand exactly where their parts stood.
MERGED = [name for name in toys.CLASSES if name in ("gemma", "gpt_neox", "qwen2", "roberta", "gpt2", "llama")]


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=True, verbose=False)["input_ids"]


def old_again(tokens: list[int], pieces: list[NewPiece]) -> list[int]:
    """Tokens with each new piece replaced by its parts."""
    parts = {piece.id: piece.parts for piece in pieces}
    return [part for token_id in tokens for part in parts.get(token_id, (token_id,))]


def assert_extends(tokenizer, extended, pieces, texts) -> None:
    """Old pieces keep their ids, and text without new pieces is split as before."""
    assert extended.get_vocab() == {**tokenizer.get_vocab(), **{piece.text: piece.id for piece in pieces}}
    merged = type(tokenizer.backend_tokenizer.model).__name__ == "BPE"
    new = {piece.id for piece in pieces}
    for text in texts:
        before, after = ids(tokenizer, text), ids(extended, text)
        assert after == before or new & set(after), text
        assert not merged or old_again(after, pieces) == before, text


@pytest.mark.slow
@pytest.mark.parametrize("kind", AWKWARD)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), others=st.lists(TEXTS, min_size=1, max_size=6))
def test_any_vocabulary_is_extended_without_touching_other_text(kind, seed, others):
    tokenizer, texts = AWKWARD[kind](seed), random_texts(seed)
    pieces = choose_new_pieces(tokenizer, texts, random.Random(seed).randint(1, 8))
    extended = extend_tokenizer(tokenizer, pieces)
    assert_extends(tokenizer, extended, pieces, [*texts, *others])
    result = compare_extended(tokenizer, extended, texts)
    assert result.tokens_after <= result.tokens_before
    assert bool(result.new_tokens) == bool(pieces)


@pytest.mark.parametrize("kind", slow(toys.CLASSES, but=["bert", "gpt2"]))
def test_every_class_saves_as_many_tokens_as_it_said_and_loads_again(kind, tmp_path):
    tokenizer, texts = toys.tokenizer(kind), toys.docstrings(20)
    before = tokenizer.backend_tokenizer.to_str()
    pieces = choose_new_pieces(tokenizer, texts[::2], 60)
    extended = extend_tokenizer(tokenizer, pieces)
    assert tokenizer.backend_tokenizer.to_str() == before
    assert type(extended) is type(tokenizer)
    assert len(extended) == len(tokenizer) + len(pieces) == len(tokenizer) + 60
    assert extended.special_tokens_map == tokenizer.special_tokens_map
    assert len(extended.added_tokens_decoder) == len(tokenizer.added_tokens_decoder)
    assert_extends(tokenizer, extended, pieces, [*texts, "中文 \x00 \U0001f600 ∀ x", *tokenizer.all_special_tokens])
    result = compare_extended(tokenizer, extended, texts[::2])
    saved, promised = result.tokens_before - result.tokens_after, sum(piece.saves for piece in pieces)
    # Words with an unknown character are not looked at, and may gain too.
    assert saved == promised or (kind in ("albert", "deberta-v2", "xlm-roberta") and promised < saved < 1.01 * promised)
    held_out = compare_extended(tokenizer, extended, texts[1::2])
    assert held_out.per_word_after < 0.99 * held_out.per_word_before
    assert 0 < held_out.texts_same < held_out.texts == len(texts[1::2])
    extended.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == extended.get_vocab()
    for text in texts:
        assert ids(loaded, text) == ids(extended, text)
    for pair in pairwise(texts[:5]):
        assert loaded(*pair)["input_ids"] == extended(*pair)["input_ids"]


@pytest.mark.parametrize("kind", slow(MERGED, but=["gpt2"]))
def test_text_comes_back_from_bytes(kind):
    tokenizer = toys.tokenizer(kind)
    text = "Zürich 中文 \U0001f600 collections.OrderedDict turtle"
    extended = extend_tokenizer(tokenizer, choose_new_pieces(tokenizer, [text, text], 8))
    new = extended(text, add_special_tokens=False)["input_ids"]
    assert len(new) < len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert extended.decode(new).strip() == text


@pytest.mark.parametrize("kind", slow(["gpt2", "bert", "xlm-roberta"], but=["gpt2"]))
def test_added_tokens_behind_the_vocabulary_keep_their_ids(kind):
    """Their ids are not stored with them alone: they are numbered from the size of the model on."""
    tokenizer = copy.deepcopy(toys.tokenizer(kind))
    tokenizer.add_tokens(["<table>", "<row>"])
    row = len(tokenizer) - 1
    pieces = choose_new_pieces(tokenizer, ["<table> turtle <row> turtle"], 2)
    extended = extend_tokenizer(tokenizer, pieces)
    assert pieces[0].id == row + 1
    assert extended.convert_tokens_to_ids("<row>") == row
    assert {row - 1, row} <= set(ids(extended, "<row>turtles <table>"))
    assert_extends(tokenizer, extended, pieces, ["<row>turtles<table>", "a turtle"])


def test_pieces_in_turn():
    """The first few of what was chosen are a choice too, and a second extension stands on the first."""
    tokenizer, texts = toys.tokenizer("bert"), toys.docstrings(20)
    pieces = choose_new_pieces(tokenizer, texts, 8)
    half = extend_tokenizer(tokenizer, pieces[:4])
    again = choose_new_pieces(half, texts, 4)
    assert [(piece.id, piece.text) for piece in again] == [(piece.id, piece.text) for piece in pieces[4:]]
    assert extend_tokenizer(half, again).get_vocab() == extend_tokenizer(tokenizer, pieces).get_vocab()
    assert extend_tokenizer(tokenizer, []) is tokenizer


def test_model_and_tokenizer_together():
    tokenizer, texts = toys.tokenizer("bert"), toys.docstrings(20)
    torch.manual_seed(0)
    model, twin = (hf.BertForMaskedLM(hf.BertConfig(**{**zoo.TEXT, "vocab_size": 900})) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    extended, pieces = extend_vocabulary(model, tokenizer, iter(texts), 20)
    assert pieces == choose_new_pieces(tokenizer, texts, 20)
    extend_model(twin, pieces)
    assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))
    assert model.config.vocab_size == len(extended) == 920
    batch = extended(pieces[0].text, return_tensors="pt")
    assert pieces[0].id in batch["input_ids"]
    assert model(**batch).logits.shape[-1] == 920
    # Refused before the texts are read.
    untouched = iter(texts)
    with pytest.raises(ConfigError, match=r"the tokenizer has 900 pieces, and the embedding has 99 rows"):
        extend_vocabulary(zoo.build("bert"), tokenizer, untouched, 5)
    with pytest.raises(AnatomyError, match="has no word embedding to extend"):
        extend_vocabulary(zoo.build("vit"), tokenizer, untouched, 5)
    assert next(untouched) == texts[0]


def test_pieces_of_another_tokenizer():
    tokenizer = toys.tokenizer("bert")
    pieces = choose_new_pieces(tokenizer, toys.docstrings(20), 3)
    with pytest.raises(ConfigError, match=rf"has id {pieces[1].id}, and the next new one of this tokenizer is"):
        extend_tokenizer(tokenizer, pieces[1:])
    with pytest.raises(ConfigError, match="the tokenizer that they were chosen for"):
        extend_tokenizer(extend_tokenizer(tokenizer, pieces), pieces)
    model = zoo.build("bert")
    with pytest.raises(ConfigError, match=r"the first new piece has id 900, and the embedding has 99 rows"):
        extend_model(model, pieces)
    with pytest.raises(AnatomyError, match="family `vit` has no word embedding to extend"):
        extend_model(zoo.build("vit"), pieces)


LANGUAGE = {
    family: hf.AutoModelForCausalLM if family in zoo.CAUSAL else hf.AutoModelForMaskedLM
    for family in zoo.TEXTS
    if family != "t5"  # its encoders have no such head
}
PIECES = [
    NewPiece(99, "one", ("a", "b"), (7, 30), 0),
    NewPiece(100, "two", ("one", "c"), (7, 30, 55), 0),
    NewPiece(101, "three", ("c", "c"), (55, 55), 0),
]


@torch.no_grad()
def run(model, inputs):
    output = model(**inputs, output_hidden_states=True)
    return output.hidden_states, output[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", LANGUAGE)
def test_new_rows_are_means_in_the_input_and_in_the_output(family, tied, tmp_path):
    config = zoo.CONFIGS[family]()
    config.tie_word_embeddings = tied
    torch.manual_seed(0)
    model = zoo.enliven(LANGUAGE[family].from_config(config)).eval()
    inputs = zoo.inputs_for(family)
    hidden, logits = run(model, inputs)
    old, count = model.get_input_embeddings().weight.clone(), len(list(model.parameters()))
    assert extend_model(model, PIECES) is model
    weight = model.get_input_embeddings().weight
    assert weight.shape[0] == model.config.vocab_size == 102
    assert torch.equal(weight[:99], old)
    new_hidden, new_logits = run(model, inputs)
    assert all(map(torch.equal, hidden, new_hidden))
    # Products of another width may be summed in another order.
    torch.testing.assert_close(new_logits[..., :99], logits, rtol=1e-5, atol=1e-5)
    for piece in PIECES:
        parts = list(piece.parts)
        torch.testing.assert_close(weight[piece.id], old[parts].mean(0))
        # Heads are linear, so that the logit of a mean is the mean of the logits, biases included.
        torch.testing.assert_close(new_logits[..., piece.id], logits[..., parts].mean(-1), rtol=1e-4, atol=1e-4)
    assert len(list(model.parameters())) == count
    model.save_pretrained(tmp_path)
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(run(loaded.eval(), inputs)[1], new_logits)


def test_rows_beyond_the_tokenizer_are_used_first():
    model = zoo.build_headed("xlm-roberta")
    old = model.get_input_embeddings().weight.clone()
    bias = model.lm_head.bias.clone()
    pieces = [NewPiece(97 + at, f"p{at}", ("a", "b"), (5, 6 + at), 0) for at in range(2)]
    extend_model(model, pieces)
    assert model.config.vocab_size == 99
    weight = model.get_input_embeddings().weight
    assert weight is model.get_output_embeddings().weight
    assert torch.equal(weight[:97], old[:97])
    torch.testing.assert_close(weight[98], old[[5, 7]].mean(0))
    torch.testing.assert_close(model.lm_head.bias[97], bias[[5, 6]].mean())
    more = [*pieces, NewPiece(99, "p2", ("a", "b"), (5, 8), 0)]
    extend_model(model, more)
    assert model.config.vocab_size == len(model.get_input_embeddings().weight) == 100


def test_precision_and_training_stay():
    model = zoo.build("bert").to(torch.bfloat16)
    model.embeddings.word_embeddings.weight.requires_grad_(False)
    extend_model(model, PIECES)
    weight = model.embeddings.word_embeddings.weight
    assert weight.dtype == torch.bfloat16
    assert not weight.requires_grad
    assert not model.training
    assert extend_model(model, []) is model


@pytest.mark.slow
def test_minilm_on_the_docstrings_of_python(tmp_path):
    folder = models.resolve("minilm")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    texts, held_out = toys.docstrings()[::2], toys.docstrings()[1::2]
    pieces = choose_new_pieces(tokenizer, texts, 500)
    extended = extend_tokenizer(tokenizer, pieces)
    assert len(extended) == 30522 + 500
    assert {"tuple", "dict", "filename"} <= {piece.text for piece in pieces[:30]}
    assert tokenizer.tokenize("a tuple of filenames") == ["a", "tu", "##ple", "of", "file", "##name", "##s"]
    assert extended.tokenize("a tuple of filenames") == ["a", "tuple", "of", "filenames"]
    assert_extends(tokenizer, extended, pieces, [*texts, *held_out])
    # Tokens for each word: from 1.72 to 1.60 where they were chosen, from 1.71 to 1.61 elsewhere.
    chosen_on, elsewhere = (compare_extended(tokenizer, extended, each) for each in (texts, held_out))
    assert chosen_on.tokens_before - chosen_on.tokens_after == sum(piece.saves for piece in pieces)
    assert chosen_on.per_word_after < 0.94 * chosen_on.per_word_before
    assert elsewhere.per_word_after < 0.95 * elsewhere.per_word_before

    old = model.get_input_embeddings().weight.clone()
    extend_model(model, pieces).save_pretrained(tmp_path)
    extended.save_pretrained(tmp_path)
    loaded, larger = AutoTokenizer.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path).eval()
    assert larger.config.vocab_size == len(loaded) == 31022
    weight = larger.get_input_embeddings().weight
    assert torch.equal(weight[:30522], old)
    for piece in pieces:
        if not piece.text.startswith("##"):
            assert list(piece.parts) == tokenizer(piece.text, add_special_tokens=False)["input_ids"]
        torch.testing.assert_close(weight[piece.id], old[list(piece.parts)].mean(0))
    assert [ids(loaded, text) for text in held_out] == [ids(extended, text) for text in held_out]
    same = [text for text in held_out if ids(extended, text) == ids(tokenizer, text)][:8]
    batch = loaded(same, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        expected = AutoModel.from_pretrained(folder).eval()(**batch).last_hidden_state
        assert torch.equal(larger(**batch).last_hidden_state, expected)
