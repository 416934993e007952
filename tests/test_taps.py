from __future__ import annotations

import gc
import weakref

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from slimformer import Anatomy, Taps, models, run_until
from slimformer.errors import TapError
from tests import zoo

EVERYTHING = ("q", "k", "v", "scores", "map", "context", "mha", "attention_output", "ffn", "output")
PADDINGS = [(family, padding) for family in zoo.TEXTS for padding in ("right", "left", None)]
PADDINGS += [(family, None) for family in zoo.IMAGES]


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def valid(inputs, tensor):
    """Rows of real tokens: [..., length, width] → [tokens, width]; what padding computes is nobody's business."""
    mask = inputs.get("attention_mask")
    return tensor if mask is None else tensor[mask.bool()]


@pytest.mark.parametrize(("family", "padding"), PADDINGS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_records_equal_the_models_own(family, padding, attention):
    model, eager = zoo.build(family, attention), zoo.build(family, "eager")
    inputs = zoo.inputs_for(family, padding)
    with torch.no_grad():
        own = eager(**inputs, output_attentions=True, output_hidden_states=True)
        untapped = model(**inputs)
        with Taps(model, record=EVERYTHING, embeddings=True) as taps:
            tapped = model(**inputs)
    assert torch.equal(tapped[0], untapped[0])
    assert hooks(model) == 0

    torch.testing.assert_close(taps.embeddings, own.hidden_states[0])
    anatomy = Anatomy.of(model)
    for layer, block in enumerate(anatomy.blocks):
        ours, theirs = taps[layer].map, own.attentions[layer]
        if attention == "sdpa":  # implementations differ in what padding tokens look at
            ours, theirs = valid(inputs, ours.transpose(1, 2)), valid(inputs, theirs.transpose(1, 2))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        output = taps[layer].output
        if layer == len(anatomy.blocks) - 1 and anatomy.final_norm is not None:
            output = anatomy.final_norm(output)
        expected = own.hidden_states[layer + 1] if block.index < 2 else own.last_hidden_state
        torch.testing.assert_close(valid(inputs, output), valid(inputs, expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_sub_layer_outputs_follow_from_each_other(family):
    """Each record recomputed from the ones before it, by what the block is meant to do."""
    model = zoo.build(family, "eager")
    with torch.no_grad(), Taps(model, record=EVERYTHING, embeddings=True) as taps:
        model(**zoo.inputs_for(family))
    previous = taps.embeddings
    for layer, block in enumerate(Anatomy.of(model).blocks):
        record = taps[layer]
        values = record.v.unflatten(-1, (-1, block.head_width)).transpose(1, 2)
        values = values.repeat_interleave(block.heads // block.key_value_heads, dim=1)
        context = (record.map @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(record.context, context, rtol=1e-4, atol=1e-5)
        projected = torch.nn.functional.linear(context, block.output.weight, block.output.bias)
        torch.testing.assert_close(record.mha, projected, rtol=1e-4, atol=1e-4)
        summed = previous + projected
        if not block.family.pre_norm:
            summed = block.attention_norm(summed)
        torch.testing.assert_close(record.attention_output, summed, rtol=1e-4, atol=1e-4)
        summed = summed + record.ffn
        if not block.family.pre_norm:
            summed = block.ffn_norm(summed)
        if not (family == "deberta-v2" and layer == 0):  # its convolution still changes the first block's output
            torch.testing.assert_close(record.output, summed, rtol=1e-4, atol=1e-4)
        previous = record.output


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_run_until_stops_where_everything_is_there(family):
    model = zoo.build(family)
    inputs = zoo.inputs_for(family)
    later = []
    blocks = Anatomy.of(model).blocks
    handles = [
        blocks[2].module.register_forward_pre_hook(lambda *_: later.append("block 2")),
        blocks[1].down.module.register_forward_pre_hook(lambda *_: later.append("feed-forward of block 1")),
    ]
    with torch.no_grad():
        record = run_until(model, 1, inputs, record=("q", "k", "v"))
        assert later == []
        with Taps(model, 1) as taps:
            model(**inputs)
        assert later == ["feed-forward of block 1", "block 2"]
        for name in ("q", "k", "v"):
            assert torch.equal(getattr(record, name), getattr(taps[1], name))
        later.clear()
        run_until(model, 1, inputs)
        assert later == ["feed-forward of block 1"]
    for handle in handles:
        handle.remove()
    assert hooks(model) == 0


def test_a_tap_on_one_layer_keeps_nothing_of_the_others():
    model = zoo.build("bert")
    made: list[weakref.ref] = []
    blocks = Anatomy.of(model).blocks
    for block in (blocks[0], blocks[2]):
        for matrix in (block.query, block.key, block.value):
            matrix.module.register_forward_hook(lambda module, args, output: made.append(weakref.ref(output)))
    with torch.no_grad(), Taps(model, 1, EVERYTHING) as taps:
        model(**zoo.inputs_for("bert"))
        gc.collect()
        assert len(made) == 6
        assert [ref for ref in made if ref() is not None] == []
        assert taps[1].q.shape == (3, 9, 48)
        with pytest.raises(TapError, match="block 2 has no records; tapped are"):
            _ = taps[2]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_flow_through_every_record(checkpointing):
    model = zoo.build("bert", "sdpa")
    inputs = zoo.inputs_for("bert")
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    query = Anatomy.of(model).blocks[0].query.module.weight
    for name in EVERYTHING:
        with Taps(model, 1, (name,)) as taps:
            model(**inputs)
            (gradient,) = torch.autograd.grad(getattr(taps[1], name).square().sum(), query)
        assert gradient.abs().sum() > 0, name
    with Taps(model, 1, EVERYTHING) as taps:
        output = model(**inputs)[0]
        kept = taps[1].q
        output.sum().backward()
        assert taps[1].q is kept, "recomputing activations must not record again"


def test_gradient_through_the_map_equals_eager_attention():
    model = zoo.build("llama", "eager")
    inputs = zoo.inputs_for("llama", "left")
    weight = Anatomy.of(model).blocks[0].key.module.weight
    weights = torch.randn(3, 4, 9, 9)
    own = model(**inputs, output_attentions=True).attentions[1]
    (expected,) = torch.autograd.grad((own * weights).sum(), weight)
    with Taps(model, 1, ("map",)) as taps:
        model(**inputs)
    (actual,) = torch.autograd.grad((taps[1].map * weights).sum(), weight)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_hooks_are_removed_after_an_exception():
    model = zoo.build("bert")
    with pytest.raises(RuntimeError, match="stop"), Taps(model):
        raise RuntimeError("stop")
    assert hooks(model) == 0
    with pytest.raises(IndexError), Taps(model):
        model(input_ids=torch.tensor([[1000]]))
    assert hooks(model) == 0
    with pytest.raises(IndexError):
        run_until(model, 0, {"input_ids": torch.tensor([[1000]])})
    assert hooks(model) == 0


def test_each_forward_starts_with_empty_records():
    model = zoo.build("bert")
    one, other = zoo.inputs_for("bert", None), zoo.inputs_for("bert", None, length=5)
    with Taps(model, 0) as taps:
        model(**one)
        first = taps[0]
        model(**other)
        assert taps[0].q.shape[1] == 5
        assert first.q.shape[1] == 9


@pytest.mark.parametrize(
    "compiled", [lambda m: torch.compile(m, backend="eager"), lambda m: m.compile(backend="eager") or m]
)
def test_compiled_models_are_refused_with_the_reason(compiled):
    model = compiled(zoo.build("bert"))
    with pytest.raises(TapError, match=r"cannot see inside `torch.compile`.*tap the plain model"), Taps(model):
        pass


def test_half_precision_softmax_runs_in_float32():
    model = zoo.build("bert", "eager").to(torch.bfloat16)
    with torch.no_grad(), Taps(model, 0, ("map",)) as taps:
        model(**zoo.inputs_for("bert"))
    assert taps[0].map.dtype == torch.float32
    torch.testing.assert_close(taps[0].map.sum(-1), torch.ones(3, 4, 9))


def test_tokens_in_a_cache_are_refused():
    model = zoo.build("llama")
    ids = zoo.inputs_for("llama", None)["input_ids"]
    with torch.no_grad(), Taps(model, 1, ("q", "map")) as taps:
        cache = model(input_ids=ids[:, :5], use_cache=True).past_key_values
        assert taps[1].map.shape[-2:] == (5, 5)
        model(input_ids=ids[:, 5:], past_key_values=cache, use_cache=True)
        assert taps[1].q.shape[1] == 4
        with pytest.raises(TapError, match=r"attended to 5 cached tokens .* `use_cache=False`"):
            _ = taps[1].map


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": 3}, "there is no block 3; the model has 3, numbered 0 to 2"),
        ({"layers": [-4]}, "there is no block -4"),
        ({"record": ("queries",)}, "`queries` cannot be recorded; choose from q, k, v"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(TapError, match=message):
        Taps(zoo.build("bert"), **arguments)


def test_what_was_not_asked_for_is_an_error():
    model = zoo.build("bert")
    with Taps(model, 0, ("q",)) as taps:
        with pytest.raises(TapError, match="block 0 has no records"):
            _ = taps[0]
        model(**zoo.inputs_for("bert"))
    with pytest.raises(TapError, match="`v` of block 0 was not recorded"):
        _ = taps[0].v
    with pytest.raises(TapError, match="ask for them with `embeddings=True`"):
        _ = taps.embeddings


def test_minilm_for_real():
    folder = models.resolve("minilm")
    model = AutoModel.from_pretrained(folder)
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager")
    texts = ["a short one", "and a rather longer sentence, so that the first is padded"]
    for side in ("left", "right"):
        batch = AutoTokenizer.from_pretrained(folder, padding_side=side)(texts, padding=True, return_tensors="pt")
        with torch.no_grad(), Taps(model, record=("map",)) as taps:
            model(**batch)
            own = eager(**batch, output_attentions=True).attentions
        for layer in range(6):
            ours, theirs = taps[layer].map.transpose(1, 2), own[layer].transpose(1, 2)
            torch.testing.assert_close(valid(batch, ours), valid(batch, theirs), rtol=0, atol=1e-5)


def test_stories_for_real(stories):
    model = AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32)
    eager = AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32, attn_implementation="eager")
    ids = AutoTokenizer.from_pretrained(stories)("Once upon a time there was", return_tensors="pt").input_ids
    with torch.no_grad(), Taps(model, record=("map",)) as taps:
        model(input_ids=ids, use_cache=False)
        own = eager(input_ids=ids, output_attentions=True).attentions
    for layer in range(6):
        torch.testing.assert_close(taps[layer].map, own[layer], rtol=0, atol=1e-5)
