"""Gemma 3n: a width for each block in its config, blocks without keys of their own, and what it refuses by name."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from slimformer import Anatomy, Taps
from slimformer.anatomy import Census
from slimformer.errors import AnatomyError, TapError
from slimformer.sizes import Budget, Costs, allocate, extract, importance, magnitude, make_elastic, make_plain, reorder
from slimformer.views import attached
from tests import zoo


@pytest.fixture
def model():
    torch.manual_seed(0)
    built = hf.Gemma3nForCausalLM(zoo.GEMMA_3N()).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() >= 2 and "altup" not in name:
                parameter.normal_(std=0.2)
    return built


@pytest.fixture
def inputs():
    return {"input_ids": torch.arange(5, 23).view(2, 9), "use_cache": False}


@torch.no_grad()
def logits(model, inputs):
    return model(**inputs).logits


def test_blocks_have_the_widths_of_the_config(model):
    anatomy = Anatomy.of(model)
    assert [block.ffn_width for block in anatomy.blocks] == [64, 64, 96, 96]
    assert [block.heads for block in anatomy.blocks] == [4] * 4
    assert [block.key_value_heads for block in anatomy.blocks] == [2] * 4
    assert [block.shares_keys for block in anatomy.blocks] == [False, False, False, True]
    assert "key" in anatomy.blocks[2].matrices
    assert "key" not in anatomy.blocks[3].matrices
    assert Census.of(anatomy).parameters == sum(each.numel() for each in model.parameters())


def test_neurons_are_reordered_without_a_change(model, inputs):
    expected = logits(model, inputs)
    reorder(model, importance(model, [inputs]))
    torch.testing.assert_close(logits(model, inputs), expected, rtol=1e-4, atol=1e-4)
    reorder(model, magnitude(model))
    torch.testing.assert_close(logits(model, inputs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", ["S", "XL", "S,M,L,XL"])
def test_a_size_is_extracted_and_loaded_by_transformers_alone(model, inputs, size, tmp_path):
    """Per-block widths stand in the config, so even a mixture of sizes is a plain checkpoint."""
    elastic = make_elastic(model)
    with elastic.at(size):
        sliced = logits(model, inputs)
    small = extract(model, size)
    torch.testing.assert_close(logits(small, inputs), sliced, rtol=1e-6, atol=1e-6)
    allocation = elastic.allocation(size)
    widths = [round(full * each.neurons) for full, each in zip([64, 64, 96, 96], allocation, strict=True)]
    assert small.config.intermediate_size == widths
    small.save_pretrained(tmp_path / "small")
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "small").eval()
    torch.testing.assert_close(logits(loaded, inputs), sliced, rtol=1e-6, atol=1e-6)


def test_a_budget_is_kept_to(model):
    elastic = make_elastic(model)
    costs = Costs.of(model)
    full = costs.total(elastic.largest)
    assert full == sum(each.numel() for each in model.parameters())
    chosen = allocate(elastic, Budget(costs, full - 20_000))
    small = extract(model, chosen)
    assert sum(each.numel() for each in small.parameters()) == costs.total(chosen) <= full - 20_000


def test_taking_the_sizes_off_leaves_the_model(model, inputs):
    expected = logits(model, inputs)
    make_elastic(model)
    assert torch.equal(logits(make_plain(model), inputs), expected)


def test_what_its_blocks_do_not_allow_is_refused_by_name(model):
    anatomy = Anatomy.of(model)
    with pytest.raises(AnatomyError, match="`gemma3n_text` takes keys and values of an earlier block"):
        _ = anatomy.blocks[3].key
    with pytest.raises(AnatomyError, match="keys and values of earlier ones"):
        anatomy.blocks[0].keep_heads([0])
    with pytest.raises(AnatomyError, match="per-layer embeddings"):
        anatomy.keep_blocks([0, 1, 2])
    with pytest.raises(AnatomyError, match="keys and values of earlier ones"):
        make_elastic(model, heads=True)
    assert next(attached(model), None) is None
    with pytest.raises(TapError, match="AltUp"):
        Taps(model)


def test_no_block_of_it_may_be_skipped(model):
    elastic = make_elastic(model, skip=True)
    assert not any(elastic.may_skip(index) for index in range(4))
