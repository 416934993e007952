"""The order of units: measured right, and changed without changing the model."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from slimformer import Anatomy
from slimformer.errors import SizeError
from slimformer.sizes import importance, magnitude, make_elastic, reorder
from tests import zoo
from tests.conftest import SHARED

TEXT = SHARED / "data" / "tinyshakespeare"


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_reordered_model_computes_what_it_did(family):
    model = zoo.build(family)
    inputs = zoo.inputs_for(family)
    with torch.no_grad():
        before = model(**inputs)[0]
    heads = Anatomy.of(model).family.heads_pinned_by is None
    first = Anatomy.of(model).blocks[0].down.weight.clone()
    orders = reorder(model, importance(model, [inputs]), heads=heads)
    with torch.no_grad():
        after = model(**inputs)[0]
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * float(before.abs().max()))
    assert torch.equal(Anatomy.of(model).blocks[0].down.weight, first[:, orders[0]])
    assert orders[0] != sorted(orders[0])


def test_importance_is_what_a_unit_adds_to_the_hidden_states():
    """Against a slow version: every neuron and head alone, on tokens that are no padding."""
    model = zoo.build("llama")
    block = Anatomy.of(model).blocks[1]
    inputs = zoo.inputs_for("llama")
    records = {}
    hooks = [
        matrix.module.register_forward_pre_hook(lambda _, args, name=name: records.__setitem__(name, args[0]))
        for name, matrix in (("down", block.down), ("output", block.output))
    ]
    measured = importance(model, [inputs])[1]
    for hook in hooks:
        hook.remove()
    real = inputs["attention_mask"].bool()
    neurons, heads = records["down"][real], records["output"][real]
    weight = block.down.weight
    for unit in (0, 7, 63):
        added = neurons[:, unit, None] * weight[:, unit]
        assert float(added.square().sum(1).mean()) == pytest.approx(float(measured.neurons[unit]), rel=1e-4)
    width = heads.shape[1] // block.key_value_heads
    for unit in range(block.key_value_heads):
        part = slice(unit * width, (unit + 1) * width)
        added = heads[:, part] @ block.output.weight[:, part].T
        assert float(added.square().sum(1).mean()) == pytest.approx(float(measured.heads[unit]), rel=1e-4)


def test_nothing_is_learned_from_nothing():
    with pytest.raises(SizeError, match="no calibration text"):
        importance(zoo.build("bert"), [])


def test_an_elastic_model_is_not_reordered():
    model = zoo.build("bert")
    worth = magnitude(model)
    make_elastic(model)
    with pytest.raises(SizeError, match="order its neurons before"):
        reorder(model, worth)


def test_the_hooks_are_gone_afterwards_and_the_mode_is_kept():
    model = zoo.build("bert").train()
    importance(model, [zoo.inputs_for("bert")])
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.slow
def test_small_sizes_of_stories_start_better_ordered(stories):
    """Before any training: the loss of S is lower by activation than by magnitude than in the order as it is."""
    text = next(TEXT.glob("*.txt"), None)
    if text is None:
        pytest.skip(f"needs text in {TEXT}")
    tokenizer = AutoTokenizer.from_pretrained(stories)
    ids = torch.tensor(tokenizer(text.read_text()[:60_000]).input_ids[: 12 * 256]).view(12, 256)
    losses = {}
    for ordering in ("activation", "magnitude", "none"):
        model = AutoModelForCausalLM.from_pretrained(stories).eval()
        if ordering == "activation":
            reorder(model, importance(model, [{"input_ids": ids[:4]}]))
        elif ordering == "magnitude":
            reorder(model, magnitude(model))
        with make_elastic(model).at("S"), torch.no_grad():
            losses[ordering] = float(model(input_ids=ids[4:], labels=ids[4:]).loss)
    assert losses["activation"] < losses["magnitude"] < losses["none"], losses
    assert all(math.isfinite(loss) for loss in losses.values())
