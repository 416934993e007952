"""One cache: rows with their own ends in it, one copy of it in memory, and sizes that take turns on it."""

from __future__ import annotations

import gc

import pytest
import torch
from transformers import DynamicCache

from slimformer.errors import ConfigError, SizeError
from slimformer.sizes import Draft, Elastic, make_elastic, name_sizes
from slimformer.sizes.decoding.cache import RowCache, Slots
from tests.sizes.decoding.models import GREEDY, decoder, elastic_decoder, prompts

PLAIN = {**GREEDY, "eos_token_id": None}


def states(rows, count, start):
    """Keys that tell row and token: [rows, 1 head, count, 2]."""
    values = start + torch.arange(rows * count, dtype=torch.float).view(rows, 1, count, 1)
    return values.expand(-1, -1, -1, 2)


def test_rows_are_written_at_their_own_slots_and_written_over():
    cache = RowCache(DynamicCache())
    cache.place(Slots.of(torch.tensor([0, 0]), 3))
    cache.update(states(2, 3, 10), states(2, 3, 10), 0)
    cache.place(Slots.of(torch.tensor([3, 1]), 2))  # the second row forgot two of its three tokens
    keys, _ = cache.update(states(2, 2, 50), states(2, 2, 50), 0)
    assert keys[:, 0, :, 0].tolist() == [[10, 11, 12, 50, 51], [13, 52, 53, 0, 0]]
    assert cache.hand_back(3).layers[0].keys[:, 0, :, 0].tolist() == [[10, 11, 12], [13, 52, 53]]
    assert not cache.layers[0].is_initialized


def test_a_cache_that_is_taken_over_is_not_changed_in_place():
    origin = DynamicCache()
    held, _ = origin.update(states(1, 3, 0), states(1, 3, 0), 0)
    before = held.clone()
    cache = RowCache(origin)
    assert origin.get_seq_length() == 0
    for _ in range(2):
        cache.place(Slots.of(torch.tensor([3]), 2))
        cache.update(states(1, 2, 90), states(1, 2, 90), 0)
    assert cache.hand_back(5).layers[0].keys[0, 0, :, 0].tolist() == [0, 1, 2, 90, 91]
    assert torch.equal(held, before)


class Weigh:
    """A streamer that weighs all keys and values in memory whenever tokens come."""

    def __init__(self, width):
        self.width, self.bytes = width, 0

    def put(self, tokens):
        gc.collect()
        held = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.dim() == 4]
        kept = {each.untyped_storage().data_ptr(): each for each in held if each.shape[-1] == self.width}
        self.bytes = max(self.bytes, sum(each.untyped_storage().nbytes() for each in kept.values()))

    def end(self):
        pass


def test_there_is_one_cache_in_memory():
    model, inputs = elastic_decoder(num_hidden_layers=2), prompts(1)
    width, heads, blocks = model.config.head_dim, model.config.num_key_value_heads, 2
    per_token = 2 * blocks * heads * width * 4
    settings = {**PLAIN, "max_new_tokens": 50}
    plain = model.generate(**inputs, **settings, return_dict_in_generate=True).past_key_values
    assert sum(layer.keys.nbytes + layer.values.nbytes for layer in plain.layers) == 58 * per_token
    del plain
    weigh = Weigh(width)
    output = model.generate(
        **inputs, **settings, draft=Draft("S", length=4), streamer=weigh, return_dict_in_generate=True
    )
    # 59 tokens, the draft's spare columns and free slots: far from the 118 tokens of two caches.
    assert weigh.bytes == output.statistics.cache_bytes
    assert 59 * per_token <= weigh.bytes <= 96 * per_token


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_cache_that_is_handed_back_is_the_one_of_the_size_in_use(batch, family):
    model, inputs = elastic_decoder(family), prompts(batch)
    expected = model.generate(**inputs, **PLAIN, return_dict_in_generate=True)
    output = model.generate(**inputs, **PLAIN, draft=Draft("S", length=3), return_dict_in_generate=True)
    assert output.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()
    real = torch.nn.functional.pad(inputs["attention_mask"], (0, 39), value=1).bool()
    for ours, theirs in zip(output.past_key_values.layers, expected.past_key_values.layers, strict=True):
        for one, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            one, other = (each.transpose(1, 2)[real] for each in (one, other))
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_conversation_goes_on_at_other_sizes(batch):
    """Prefill with XL, go on with M and back; each turn writes what it would write on the same keys and values."""
    model, inputs = elastic_decoder(), prompts(batch)
    elastic = Elastic.of(model)
    turns = [("XL", None), ("M", None), ("XL", Draft("S", length=3)), ("M", "S"), ("XL", None)]
    written = {}
    for drafting in (True, False):
        text, mask, cache = inputs["input_ids"], inputs["attention_mask"], DynamicCache(config=model.config)
        for size, draft in turns:
            with elastic.at(size):
                output = model.generate(
                    input_ids=text,
                    attention_mask=mask,
                    past_key_values=cache,
                    draft=draft if drafting else None,
                    **{**PLAIN, "max_new_tokens": 7},
                    return_dict_in_generate=True,
                )
            assert output.past_key_values is cache
            text = output.sequences
            mask = torch.nn.functional.pad(mask, (0, text.shape[1] - mask.shape[1]), value=1)
        assert cache.get_seq_length() == text.shape[1] - 1
        written[drafting] = text
    assert torch.equal(written[True], written[False])
    alone = model.generate(**inputs, **{**PLAIN, "max_new_tokens": 35})
    assert torch.equal(written[True][:, :16], alone[:, :16])
    assert not torch.equal(written[True], alone)


@pytest.mark.parametrize("draft", [None, "same"])
@pytest.mark.parametrize(
    ("first", "second", "heads"),
    [
        ("XL", "M", "0 has key-value heads 2 and 1"),
        ("M", "XL", "0 has key-value heads 1 and 2"),
        ("XL", "XL,0,XL", r"1 has key-value heads 2 and none \(skipped\)"),
        ("0,XL,XL", "XL", r"0 has key-value heads none \(skipped\) and 2"),
    ],
)
def test_a_cache_of_other_heads_or_blocks_is_refused(first, second, heads, draft):
    model, inputs = decoder(), prompts(2)
    elastic = make_elastic(model, name_sizes([0.25, 0.5, 1], heads=[0.5, 0.5, 1]), skip=True)
    with elastic.at(first):
        output = model.generate(**inputs, **PLAIN, return_dict_in_generate=True)
    cache, text = output.past_key_values, output.sequences
    before = [layer.keys.clone() for layer in cache.layers]
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 40), value=1)
    further = {"input_ids": text, "attention_mask": mask, "past_key_values": cache, **PLAIN}
    with elastic.at(second), pytest.raises(SizeError, match=f"cannot serve the size in use: block {heads}"):
        model.generate(**further, draft=draft and second)
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before, strict=True))
    with elastic.at(first):
        model.generate(**further)
    assert cache.get_seq_length() == 88


def test_new_tokens_alone_go_on_from_a_cache():
    model, inputs = elastic_decoder(), prompts(3)
    for draft in (None, Draft("M", length=3)):
        first = model.generate(**inputs, **PLAIN, return_dict_in_generate=True)
        new = torch.cat([first.sequences[:, -1:], torch.tensor([[5, 6], [7, 8], [9, 10]])], dim=1)
        mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 42), value=1)
        settings = {**PLAIN, "max_new_tokens": 10}
        second = model.generate(
            input_ids=new, attention_mask=mask, past_key_values=first.past_key_values, draft=draft, **settings
        )
        if draft is None:
            expected = second
    assert second.shape == (3, 13)
    assert torch.equal(second, expected)


def test_a_run_that_fails_leaves_the_cache_as_it_was():
    model, inputs = elastic_decoder(), prompts(1)
    first = model.generate(**inputs, **PLAIN, return_dict_in_generate=True)
    cache, text = first.past_key_values, first.sequences
    before = [layer.keys.clone() for layer in cache.layers]

    class Fails:
        def put(self, tokens):
            if tokens.shape[-1] < 9:
                raise KeyboardInterrupt

        def end(self):
            pass

    with pytest.raises(KeyboardInterrupt):
        model.generate(
            input_ids=text,
            attention_mask=torch.ones_like(text),
            past_key_values=cache,
            draft="S",
            streamer=Fails(),
            **{**PLAIN, "max_new_tokens": 10},
        )
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, before, strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache_implementation": "static"}, "needs a plain cache that grows, and this one is a `StaticCache`"),
        ({"cache_implementation": "offloaded"}, "needs every token in the cache, and the model has an offloaded one"),
        ({"use_cache": False}, "`use_cache` is off"),
    ],
)
def test_other_caches_are_refused(settings, message):
    model, inputs = elastic_decoder(), prompts(2)
    with pytest.raises(ConfigError, match=message):
        model.generate(**inputs, **GREEDY, **settings, draft="S")


def test_a_sliding_window_is_refused():
    model = elastic_decoder("qwen2", use_sliding_window=True, sliding_window=4, layer_types=["sliding_attention"] * 3)
    with pytest.raises(ConfigError, match="every token in the cache, and the model has a `DynamicSlidingWindowLayer`"):
        model.generate(**prompts(1), **GREEDY, draft="S")


def test_a_prompt_that_is_in_the_cache_already_is_refused():
    model, inputs = elastic_decoder(), prompts(1)
    cache = model.generate(**inputs, **PLAIN, return_dict_in_generate=True).past_key_values
    with pytest.raises(ConfigError, match="the cache has 48 tokens, and the prompt with it only 9; add a token to it"):
        model.generate(**inputs, past_key_values=cache, **{**PLAIN, "max_new_tokens": 60}, draft="S")
    assert cache.get_seq_length() == 48
