"""Rounded activations on whole models of every family."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from slimformer import Anatomy
from slimformer.errors import ViewError
from slimformer.views import (
    Rounding,
    quantize_activation,
    round_activations,
    rounding_of,
    unround_activations,
    unrounded,
)
from slimformer.views.attention import goes_through_registry, kept_scores, use_attention
from tests import zoo


def hidden(model, inputs):
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def part(inputs, rows, columns=slice(None)):
    """Some rows of a batch, and of texts some columns."""
    cut = {}
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            cut[name] = value
        else:
            cut[name] = value[rows, columns] if value.dim() == 2 and name != "noise" else value[rows]
    return cut


@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_our_attention_is_eager_attention(family, padding):
    model = zoo.build(family, "eager")
    inputs = zoo.inputs_for(family, padding)
    expected = hidden(model, inputs)
    before = use_attention(model)
    assert (before is None) == (family in ("deberta-v2", "mpnet"))
    torch.testing.assert_close(hidden(model, inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_operand_is_rounded(family, monkeypatch):
    """One rounding for each input that is read, and for Q, K, P and V of each block."""
    model = zoo.build(family)
    calls = []
    original = Rounding.__call__
    monkeypatch.setattr(Rounding, "__call__", lambda self, x: calls.append(tuple(x.shape)) or original(self, x))
    round_activations(model, Rounding())
    inputs = zoo.inputs_for(family)
    hidden(model, inputs)
    # Per block: three or four inputs (the gate reads what up reads), Q, K, P, V; the pooler's input where there is one.
    pooler = Anatomy.of(model).pooler is not None
    # DeBERTa runs its positions through the projections of queries and keys as well: one more input, Q and K.
    positions = 3 * 3 if family == "deberta-v2" else 0
    assert len(calls) == 3 * 8 + pooler + positions


@pytest.mark.parametrize("family", zoo.TEXTS)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_answers_do_not_depend_on_batch_mates_or_padding(family, padding):
    model = zoo.build(family).double()
    inputs = zoo.inputs_for(family, padding)
    plain = hidden(model, inputs)
    round_activations(model, Rounding())
    together = hidden(model, inputs)
    assert (together - plain).abs().max() > 1e-3  # rounding does something
    real = inputs["attention_mask"].bool()
    for row in range(len(real)):
        # Positions that are not given follow from the column, so a left-padded text keeps them only with its padding.
        keeps_positions = padding == "right" or "position_ids" in inputs
        columns = real[row].nonzero().flatten() if keeps_positions else slice(None)
        alone = hidden(model, part(inputs, slice(row, row + 1), columns))
        alone = alone[0] if keeps_positions else alone[0][real[row]]
        torch.testing.assert_close(alone, together[row][real[row]], rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_images_do_not_depend_on_each_other(family):
    model = round_activations(zoo.build(family).double(), Rounding())
    inputs = {"pixel_values": zoo.inputs_for(family)["pixel_values"].double()}
    together = hidden(model, inputs)
    for row in range(len(together)):
        alone = hidden(model, part(inputs, slice(row, row + 1)))
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-9)


def test_the_reference_mode_depends_on_batch_mates():
    model = round_activations(zoo.build("bert").double(), Rounding(per="tensor", clip=2.5))
    inputs = zoo.inputs_for("bert", None)
    alone = hidden(model, part(inputs, slice(0, 1)))
    assert (alone[0] - hidden(model, inputs)[0]).abs().max() > 1e-4


@pytest.mark.parametrize("family", ["bert", "llama", "mpnet", "gpt2"])
def test_taking_it_off_restores_the_model(family):
    model = zoo.build(family)
    inputs = zoo.inputs_for(family)
    plain, implementation = hidden(model, inputs), model.config._attn_implementation
    round_activations(model, Rounding())
    rounded = hidden(model, inputs)
    with unrounded(model):
        assert torch.equal(hidden(model, inputs), plain)
    assert torch.equal(hidden(model, inputs), rounded)
    copied = copy.deepcopy(model)
    assert torch.equal(hidden(copied, inputs), rounded)
    unround_activations(copied)
    assert rounding_of(copied) is None
    assert torch.equal(hidden(copied, inputs), plain)
    assert rounding_of(model) == Rounding()
    assert torch.equal(hidden(model, inputs), rounded)
    unround_activations(model)
    assert model.config._attn_implementation == implementation
    assert torch.equal(hidden(model, inputs), plain)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_rounding_twice_is_refused():
    model = round_activations(zoo.build("bert"), Rounding())
    with pytest.raises(ViewError, match="rounded already"):
        round_activations(model, Rounding())


def test_a_tied_head_reads_rounded_inputs():
    model = zoo.build_headed("gpt2")
    round_activations(model, Rounding())
    assert len(model.lm_head._forward_pre_hooks) == 1
    untied = zoo.build_headed("bert")
    round_activations(untied, Rounding())
    assert not untied.classifier._forward_pre_hooks


def test_nothing_is_held_after_a_forward():
    model = round_activations(zoo.build("llama"), Rounding())
    hidden(model, zoo.inputs_for("llama"))
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    held = [hook.last for hook in hooks if hasattr(hook, "last")]
    assert held
    assert held == [None] * len(held)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_an_error(symmetric, value):
    x = torch.randn(3, 4)
    x[1, 2] = value
    with pytest.raises(ViewError, match="holds NaN or infinity"):
        quantize_activation(x, per="token", clip=None, symmetric=symmetric)
    if math.isinf(value):
        assert torch.isfinite(quantize_activation(x, per="token", clip=2.5, symmetric=symmetric)).all()


def test_nan_inside_a_model_is_an_error():
    model = round_activations(zoo.build("bert"), Rounding())
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[7] = math.nan
    inputs = zoo.inputs_for("bert")
    inputs["input_ids"][0, 0] = 7
    with pytest.raises(ViewError, match="holds NaN"):
        hidden(model, inputs)


def test_saturating_inputs():
    x = torch.tensor([[1e30, -1e30, 1.0, 0.0]])
    clipped = torch.tensor([[2.5, -2.5, 1.0, 0.0]])
    assert torch.equal(quantize_activation(x, clip=2.5), quantize_activation(clipped, clip=None))
    assert torch.isfinite(quantize_activation(x, per="token", clip=None)).all()


@pytest.mark.parametrize("family", [family for family in zoo.FAMILIES if family not in ("deberta-v2", "mpnet")])
def test_kept_scores_are_those_of_the_taps(family):
    from slimformer import Taps

    model = zoo.build(family)
    inputs = zoo.inputs_for(family)
    use_attention(model)
    assert goes_through_registry(Anatomy.of(model).blocks[0])
    with torch.no_grad(), kept_scores(model, (0, 2)) as kept, Taps(model, "all", ("scores", "map")) as taps:
        model(**inputs)
    assert sorted(kept) == [0, 2]
    for layer, scores in kept.items():
        torch.testing.assert_close(scores.scores, taps[layer].scores, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(scores.masked.softmax(-1), taps[layer].map, rtol=1e-4, atol=1e-5)
    hidden(model, inputs)  # nothing is kept any more
    assert sorted(kept) == [0, 2]


def test_attention_of_another_making_is_refused():
    from slimformer.views.attention import attend

    heads = torch.randn(1, 2, 3, 4)
    with pytest.raises(ViewError, match="`softcap`"):
        attend(torch.nn.Identity(), heads, heads, heads, None, softcap=30.0)
