"""`generate` of one elastic model takes a draft; everything else about it stays."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

from slimformer.errors import ConfigError, SizeError
from slimformer.sizes import (
    Draft,
    DraftStatistics,
    Elastic,
    extract,
    frequent_tokens,
    make_elastic,
    make_plain,
    name_sizes,
)
from tests import zoo
from tests.sizes.decoding.models import GREEDY, decoder, elastic_decoder, prompts


def test_only_the_model_that_is_elastic_takes_a_draft():
    model, inputs = elastic_decoder(), prompts(2)
    expected = model.generate(**inputs, **GREEDY)
    assert LlamaForCausalLM.generate is not type(model).__dict__.get("generate")
    assert "generate" in model.__dict__
    for other in (decoder(), extract(model, "S"), make_plain(model)):
        assert "generate" not in other.__dict__
        with pytest.raises(ValueError, match="draft"):
            other.generate(**inputs, **GREEDY, draft="S")
    assert torch.equal(model.generate(**inputs, **GREEDY), expected)


def test_a_copy_generates_by_itself():
    model, inputs = elastic_decoder(), prompts(2)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert copied.generate.__self__ is copied
    expected = copied.generate(**inputs, **GREEDY)
    assert torch.equal(copied.generate(**inputs, **GREEDY, draft="S"), expected)
    assert not torch.equal(model.generate(**inputs, **GREEDY, draft="S"), expected)


def test_models_that_write_nothing_are_left_alone():
    model = zoo.build("bert")
    make_elastic(model)
    assert "generate" not in model.__dict__


def test_without_a_draft_nothing_changes():
    model, plain, inputs = elastic_decoder(), decoder(), prompts(3)
    for settings in (GREEDY, {**GREEDY, "num_beams": 3}):
        assert torch.equal(model.generate(**inputs, **settings), plain.generate(**inputs, **settings))
    outputs = [
        each.generate(**inputs, **GREEDY, return_dict_in_generate=True, output_scores=True) for each in (model, plain)
    ]
    assert len(outputs[0].scores) == len(outputs[1].scores) == 40
    torch.manual_seed(3)
    one = model.generate(**inputs, **{**GREEDY, "do_sample": True})
    torch.manual_seed(3)
    assert torch.equal(one, plain.generate(**inputs, **{**GREEDY, "do_sample": True}))


def test_statistics_tell_what_a_run_did():
    model, inputs = elastic_decoder(), prompts(1)
    settings = {**GREEDY, "eos_token_id": None, "return_dict_in_generate": True}
    statistics = model.generate(**inputs, **settings, draft=Draft("XL", length=4)).statistics
    # 40 tokens: one from the prompt, seven verifications of four and one more, and one of the four that are left.
    assert (statistics.drafted, statistics.accepted, statistics.acceptance) == (31, 31, 1.0)
    assert (statistics.draft_calls, statistics.verify_calls, statistics.generated) == (31, 9, 40)
    assert DraftStatistics().acceptance == 0
    again = model.generate(**inputs, **settings, draft=Draft("XL", length=4)).statistics
    assert again == statistics


def test_sequences_for_one_prompt_are_drawn_apart():
    model, inputs = elastic_decoder(), prompts(1)
    settings = {**GREEDY, "do_sample": True, "num_return_sequences": 5}
    output = model.generate(**inputs, **settings, draft="S")
    assert output.shape[0] == 5
    assert len({tuple(row.tolist()) for row in output}) == 5


class Collects(BaseStreamer):
    """Keeps the tokens it gets, of any number of rows."""

    def __init__(self):
        self.tokens = []

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.tokens.append("end")


def test_a_streamer_gets_every_token_once():
    model, inputs, streamer = elastic_decoder(), prompts(1), Collects()
    output = model.generate(**inputs, **GREEDY, draft=Draft("M", length=3), streamer=streamer)
    assert streamer.tokens == [*output[0].tolist(), "end"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 2}, "the settings ask for beam_search, and a draft is for greedy search or sampling"),
        ({"output_scores": True, "return_dict_in_generate": True}, "`output_scores` is set"),
        ({"prompt_lookup_num_tokens": 3}, "the settings ask for assisted_generation"),
        ({"assistant_model": "another"}, "`assistant_model` and `draft` are both given"),
        ({"stop_strings": ["the"]}, "`stop_strings` and `draft` are both given"),
        ({"generation_config": GenerationConfig(stop_strings=["the"])}, "`stop_strings` and `draft` are both given"),
        ({"streamer": Collects()}, "a streamer takes one row, and the prompt has 2"),
        ({"guidance_scale": 2.0}, "cannot be verified under a `UnbatchedClassifierFreeGuidanceLogitsProcessor`"),
        ({"prefill_chunk_size": 4}, "`prefill_chunk_size` is set"),
        ({"draft": "XXL"}, "there is no size `XXL`; the model has S"),
        ({"draft": Draft("S", shortlist=[3, 99])}, "the shortlist names token 99, and the model has 99"),
        ({"attention_mask": torch.tensor([[1] * 9, [1] * 8 + [0]])}, "is padded on the right"),
        ({"pad_token_id": None, "eos_token_id": None, "stopping_criteria": [lambda *_: False]}, "no `pad_token_id`"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_done_with_a_draft_is_refused(settings, message):
    model = elastic_decoder()
    with pytest.raises((ConfigError, SizeError), match=message):
        model.generate(**{**prompts(2), **GREEDY, "draft": "S", **settings})


def test_positions_and_hidden_inputs_that_are_not_tokens_are_refused():
    model, inputs = elastic_decoder(), prompts(2)
    embedded = model.get_input_embeddings()(inputs["input_ids"])
    with pytest.raises(ConfigError, match="a prompt is tokens alone, and `inputs_embeds` is given"):
        model.generate(inputs_embeds=embedded, attention_mask=inputs["attention_mask"], **GREEDY, draft="S")
    with pytest.raises(ConfigError, match=r"takes its settings by name; write `generation_config=…`"):
        model.generate(inputs["input_ids"], model.generation_config, draft="S")


def test_attention_without_a_mask_is_refused_for_more_than_one_row(monkeypatch):
    model = elastic_decoder()
    monkeypatch.setattr(model.config, "_attn_implementation", "flash_attention_2")
    with pytest.raises(ConfigError, match="eager or sdpa, and this model has `flash_attention_2`"):
        model.generate(**prompts(2), **GREEDY, draft="S")


def test_sizes_that_cannot_share_a_cache_do_not_draft_for_each_other():
    model = decoder()
    elastic = make_elastic(model, name_sizes([0.25, 1], heads=[0.5, 1]))
    with pytest.raises(SizeError, match="cannot serve both `S` and the size in use: block 0 has key-value heads 1 and"):
        model.generate(**prompts(1), **GREEDY, draft="S")
    with elastic.at("S"):
        model.generate(**prompts(1), **GREEDY, draft="S")


def test_positions_may_be_given():
    model, inputs = elastic_decoder(), prompts(3)
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0) + 5
    expected = model.generate(**inputs, position_ids=positions, **GREEDY)
    assert torch.equal(model.generate(**inputs, position_ids=positions, **GREEDY, draft=Draft("M", length=3)), expected)


def test_processors_may_leave_nothing_of_the_shortlist():
    """The last token is forced to one that cannot be drafted."""
    model, inputs = elastic_decoder(), prompts(3)
    settings = {**GREEDY, "eos_token_id": 7, "forced_eos_token_id": 7, "max_new_tokens": 12}
    draft = Draft("S", length=3, shortlist=[20, 21])
    assert torch.equal(model.generate(**inputs, **settings, draft=draft), model.generate(**inputs, **settings))
    sampled = model.generate(**inputs, **{**settings, "do_sample": True}, draft=draft)
    assert (sampled == 7).any(dim=1).all()


def test_frequent_tokens_come_first():
    assert frequent_tokens([[5, 5, 9], torch.tensor([9, 9, 2])], 2) == [5, 9]


def test_the_size_in_use_may_be_set_for_good():
    model, inputs = elastic_decoder(), prompts(2)
    Elastic.of(model).set("M")
    expected = model.generate(**inputs, **GREEDY)
    assert torch.equal(model.generate(**inputs, **GREEDY, draft="S"), expected)
