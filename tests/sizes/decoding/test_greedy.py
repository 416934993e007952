"""Greedy decoding with a draft writes what the size in use writes alone."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria

from slimformer import Anatomy
from slimformer.sizes import Draft, Elastic, importance, make_elastic, name_sizes, reorder
from slimformer.views import QuantizedView, attach
from tests import zoo
from tests.sizes.decoding.models import GREEDY, decoder, elastic_decoder, mismatches, prompts

DRAFTS = ("S", Draft("M", length=3), Draft("XL", length=5), Draft("M", shortlist=range(40), cost=0.05))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("family", zoo.CAUSAL)
def test_the_output_is_that_of_the_largest_size(family, batch):
    model, inputs = elastic_decoder(family), prompts(batch)
    expected = model.generate(**inputs, **GREEDY)
    for draft in DRAFTS:
        output = model.generate(**inputs, **GREEDY, draft=draft, return_dict_in_generate=True)
        assert torch.equal(output.sequences, expected)
        assert output.statistics.drafted > 0
    with Elastic.of(model).at("S"):
        assert not torch.equal(model.generate(**inputs, **GREEDY), expected)


def test_rows_keep_different_numbers_of_tokens():
    """Without rows that part, rolling each back by itself would not be tried at all."""
    model, inputs = elastic_decoder("gemma"), prompts(4)
    statistics = model.generate(**inputs, **GREEDY, draft=Draft("S", length=3), return_dict_in_generate=True).statistics
    assert 0.3 < statistics.acceptance < 0.9
    assert statistics.generated == 160
    assert statistics.verify_calls < 40


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
        {"min_new_tokens": 25, "bad_words_ids": [[13], [21, 34]]},
        {"max_new_tokens": 1},
        {"eos_token_id": None, "pad_token_id": None},
        {"max_new_tokens": 55},
    ],
    ids=lambda settings: next(iter(settings)),
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_settings_of_generate_are_kept(family, settings):
    """The last one goes to the last position there is."""
    model, inputs = elastic_decoder(family), prompts(3)
    settings = {**GREEDY, **settings}
    expected = model.generate(**inputs, **settings)
    assert torch.equal(model.generate(**inputs, **settings, draft=Draft("M", length=4)), expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_of_any_kind_takes_the_mask(attention):
    model, inputs = elastic_decoder(), prompts(4)
    model.set_attn_implementation(attention)
    expected = model.generate(**inputs, **GREEDY)
    assert torch.equal(model.generate(**inputs, **GREEDY, draft=Draft("XL", length=3)), expected)
    assert torch.equal(model.generate(**inputs, **GREEDY, draft=Draft("S", length=3)), expected)


class EveryRowByItself(StoppingCriteria):
    """Ends a row after any of a few tokens, which `generate` knows nothing of."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], torch.arange(0, 99, 3))


def test_other_criteria_end_a_row_at_the_token_they_name():
    model, inputs = elastic_decoder(), prompts(4)
    settings = {**GREEDY, "eos_token_id": [98], "stopping_criteria": [EveryRowByItself()]}
    expected = model.generate(**inputs, **settings)
    assert torch.equal(model.generate(**inputs, **settings, draft=Draft("XL", length=4)), expected)
    lengths = (expected[:, 9:] != 0).sum(1)
    assert lengths.unique().numel() > 1


def test_the_size_in_use_verifies():
    model, inputs = elastic_decoder(), prompts(4)
    elastic = Elastic.of(model)
    with elastic.at("M"):
        expected = model.generate(**inputs, **GREEDY)
        assert torch.equal(model.generate(**inputs, **GREEDY, draft="S"), expected)
    assert not torch.equal(model.generate(**inputs, **GREEDY, draft="S"), expected)


def test_sizes_with_fewer_heads_and_blocks_draft_for_each_other():
    model, inputs = decoder(), prompts(3)
    elastic = make_elastic(model, name_sizes([0.25, 0.5, 1], heads=[0.5, 0.5, 1]), skip=True)
    with elastic.at("M,0,M"):
        expected = model.generate(**inputs, **GREEDY)
        assert torch.equal(model.generate(**inputs, **GREEDY, draft=Draft("S,0,S", length=3)), expected)


def test_weights_under_other_views_are_not_held_twice():
    """A ternary model is sliced in every forward: computed for good, its weights would be a second set."""
    model, inputs = decoder(), prompts(3)
    for block in Anatomy.of(model).blocks:
        attach(block.up, QuantizedView("ternary", "matrix"))
    make_elastic(model, [0.25, 0.5, 1])
    expected = model.generate(**inputs, **GREEDY)
    output = model.generate(**inputs, **GREEDY, draft=Draft("M", length=3), return_dict_in_generate=True)
    assert torch.equal(output.sequences, expected)
    assert output.statistics.acceptance < 1


BEGINNINGS = (
    "Once upon a time, there was a little",
    "Tom",
    "One day, a girl named Lily went to the park with her mother and saw a big",
    "The dog was sad because",
    "In the forest lived an old bear. Every morning he",
    "Ben and Mia",
)


@pytest.mark.parametrize("batch", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_real_decoder_tells_the_same_stories(stories, batch):
    model = AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(stories, padding_side="left", pad_token="<unk>")
    calibration = tokenizer(list(BEGINNINGS), return_tensors="pt", padding=True)
    reorder(model, importance(model, [calibration]))
    make_elastic(model)
    inputs = tokenizer(list(BEGINNINGS[:batch]), return_tensors="pt", padding=True)
    settings = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(**inputs, **settings)
    output = model.generate(**inputs, **settings, draft=Draft("L", length=3), return_dict_in_generate=True)
    assert not mismatches(model, inputs, output.sequences, expected)
    assert output.statistics.accepted > 0
