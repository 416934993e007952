"""Stacking, baking, stripping and saving views, on every family."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

from slimformer import Anatomy
from slimformer.anatomy.tied import tied_modules
from slimformer.errors import AnatomyError, ViewError
from slimformer.views import (
    MaskView,
    QuantizedView,
    SliceView,
    Width,
    attach,
    attached,
    bake,
    describe,
    restore,
    slice_heads,
    slice_neurons,
    strip,
    uniform_scores,
)
from tests import zoo


def outputs(model, family):
    with torch.no_grad():
        return model(**zoo.inputs_for(family))[0]


def assert_equal_enough(actual, expected):
    """Bit for bit where the BLAS allows, 1e-6 of the largest value always."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6 * float(expected.detach().abs().max()))


def view_everything(model, order=("ternary", "mask"), seed=0):
    """The views every method would put on, on all matrices; heads and neurons sliced last."""
    generator = torch.Generator().manual_seed(seed)
    anatomy = Anatomy.of(model)
    for block in anatomy.blocks:
        for matrix in block.matrices.values():
            for kind in order:
                if kind == "ternary":
                    attach(matrix, QuantizedView("ternary"))
                else:
                    attach(matrix, MaskView(uniform_scores(matrix.shape, 0.3, generator=generator)))
    if anatomy.word_embedding is not None:
        view = QuantizedView("ternary")
        for table in (*tied_modules(anatomy), anatomy.word_embedding):
            attach(table, view)
    widths = []
    for block in anatomy.blocks:
        widths.append(slice_neurons(block))
        widths[-1].set(40 + block.index)
        if block.family.heads_pinned_by is None:
            widths.append(slice_heads(block))
            widths[-1].set(max(1, widths[-1].full - 1))
    return widths


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("view", ["ternary", "mask"])
def test_each_matrix_shows_what_its_view_says_and_no_other_changes(family, view):
    for role in Anatomy.of(zoo.build(family)).blocks[1].matrices:
        model = zoo.build(family)
        block = Anatomy.of(model).blocks[1]
        before = {name: matrix.weight.detach().clone() for name, matrix in block.matrices.items()}
        matrix = block.matrices[role]
        shape = before[role].shape
        made = QuantizedView("ternary", "matrix") if view == "ternary" else MaskView(uniform_scores(shape, 0.4))
        attach(matrix, made)
        for name, other in block.matrices.items():
            assert torch.equal(other.weight, made(before[name]) if name == role else before[name]), (role, name)


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("order", [("ternary", "mask"), ("mask", "ternary"), ("mask",), ("ternary",), ()])
def test_baked_equals_viewed_and_strip_returns_the_base(family, order):
    model = zoo.build(family)
    base = copy.deepcopy(model.state_dict())
    plain = outputs(model, family)
    view_everything(model, order)
    viewed = outputs(model, family)
    assert not torch.equal(viewed, plain)

    baked = bake(copy.deepcopy(model))
    assert next(attached(baked), None) is None
    assert_equal_enough(outputs(baked, family), viewed)
    block = Anatomy.of(baked).blocks[0]
    assert block.ffn_width == 40
    assert type(block.down.module) in (nn.Linear, Conv1D)

    assert torch.equal(outputs(model, family), viewed)
    strip(model)
    assert model.state_dict().keys() == base.keys()
    assert all(torch.equal(value, base[name]) for name, value in model.state_dict().items())
    assert torch.equal(outputs(model, family), plain)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_nested_equals_narrowed_for_good(family):
    """A slice computes what a model without the other neurons and heads computes."""
    model, narrow = zoo.build(family), zoo.build(family)
    for block, other in zip(Anatomy.of(model).blocks, Anatomy.of(narrow).blocks, strict=True):
        neurons = slice_neurons(block)
        neurons.set(24)
        other.keep_neurons(range(24))
        if block.family.heads_pinned_by is None:
            heads = slice_heads(block)
            keep = (heads.full + 1) // 2
            heads.set(keep)
            other.keep_heads(range(keep))
            assert other.key_value_heads == keep
    assert_equal_enough(outputs(model, family), outputs(narrow, family))


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("narrow", ["baked", "kept"])
def test_a_narrowed_model_can_be_saved_and_loaded_by_anyone(family, narrow, tmp_path):
    model = zoo.build(family)
    for block in Anatomy.of(model).blocks:
        if narrow == "baked":
            slice_neurons(block).set(24)
        else:
            block.keep_neurons(range(24))
    bake(model)
    model.save_pretrained(tmp_path)
    again = zoo.bare(family).from_pretrained(tmp_path)
    assert Anatomy.of(again).blocks[0].ffn_width == 24
    assert_equal_enough(outputs(again.eval(), family), outputs(model, family))


def test_fewer_heads_are_saved_where_the_config_can_tell():
    model = zoo.build("llama")
    for block in Anatomy.of(model).blocks:
        slice_heads(block).set(1)
    bake(model)
    assert (model.config.num_attention_heads, model.config.num_key_value_heads, model.config.head_dim) == (2, 1, 12)


def test_heads_pinned_by_the_family_are_refused_with_the_reason():
    block = Anatomy.of(zoo.build("mpnet")).blocks[0]
    for refuse in (slice_heads, lambda pinned: pinned.keep_heads([0])):
        with pytest.raises(AnatomyError, match=r"`mpnet`.*share one table"):
            refuse(block)


@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert", "gpt_neox", "deberta-v2", "llama"])
def test_deepcopy_is_independent(family):
    model = zoo.build(family)
    view_everything(model)
    viewed = outputs(model, family)
    twin = copy.deepcopy(model)
    assert torch.equal(outputs(twin, family), viewed)
    for at in attached(twin):
        if isinstance(at.view, SliceView):
            at.view.width.set(1)
    strip(twin)
    assert torch.equal(outputs(model, family), viewed)
    bake(model)
    assert_equal_enough(outputs(model, family), viewed)


@pytest.mark.slow
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_saved_and_restored_without_pickle(family, tmp_path):
    model = zoo.build(family)
    view_everything(model)
    description = describe(model)
    tensors = {name: value.clone(memory_format=torch.contiguous_format) for name, value in model.state_dict().items()}
    save_file(tensors, tmp_path / "viewed.safetensors")

    fresh = restore(zoo.build(family, seed=5), description)
    assert not torch.equal(outputs(fresh, family), outputs(model, family))
    fresh.load_state_dict(load_file(tmp_path / "viewed.safetensors"))
    assert torch.equal(outputs(fresh, family), outputs(model, family))
    assert describe(fresh) == description
    with pytest.raises(ViewError, match="carries views already"):
        restore(fresh, description)


def test_a_masked_bias_under_a_slice_is_restored():
    linear = nn.Linear(4, 6)
    attach(linear, MaskView(uniform_scores((6,), 0.5)), tensor="bias")
    attach(linear, SliceView(Width(6, 3)))
    fresh = restore(nn.Linear(4, 6), describe(linear))
    fresh.load_state_dict(linear.state_dict())
    x = torch.randn(2, 4)
    assert torch.equal(fresh(x), linear(x))


def test_views_train_inside_ddp(tmp_path):
    import torch.distributed as dist

    model = zoo.build("bert")
    view_everything(model)
    twin = copy.deepcopy(model)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        wrapped(**zoo.inputs_for("bert"))[0].sum().backward()
    finally:
        dist.destroy_process_group()
    twin(**zoo.inputs_for("bert"))[0].sum().backward()
    compared = 0
    for (name, ours), (_, plain) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert (ours.grad is None) == (plain.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, plain.grad)
            compared += 1
    assert compared > 50


@pytest.mark.parametrize("make", [lambda: nn.Linear(12, 9), lambda: Conv1D(9, 12), lambda: nn.Embedding(9, 12)])
@given(
    seed=st.integers(0, 999),
    order=st.permutations(["ternary", "mask"]),
    rows=st.integers(1, 9),
    columns=st.integers(1, 12),
)
@settings(max_examples=25, deadline=None)
def test_any_stack_bakes_and_strips(make, seed, order, rows, columns):
    torch.manual_seed(seed)
    module = make()
    base = {name: value.clone() for name, value in module.state_dict().items()}
    for kind in order:
        attach(module, QuantizedView("ternary") if kind == "ternary" else MaskView(uniform_scores((9, 12), 0.5)))
    attach(module, SliceView(Width(9, rows), "rows"))
    attach(module, SliceView(Width(12, columns), "columns"))
    x = torch.randint(0, rows, (4,)) if isinstance(module, nn.Embedding) else torch.randn(4, columns)
    shown = module(x)
    twin = bake(copy.deepcopy(module))
    assert_equal_enough(twin(x), shown)
    strip(module)
    assert module.state_dict().keys() == base.keys()
    assert all(torch.equal(value, base[name]) for name, value in module.state_dict().items())
    assert type(module) is type(make())


def slice_rows():
    return SliceView(Width(6), "rows")


@pytest.mark.parametrize(
    ("below", "above", "reason"),
    [
        (slice_rows, lambda: QuantizedView("ternary", "matrix"), "it is sliced already"),
        (slice_rows, lambda: MaskView(torch.ones(6, 6)), "it is sliced already"),
        (slice_rows, slice_rows, "its rows are sliced already"),
        (lambda: QuantizedView("ternary"), lambda: QuantizedView("int4"), "the weight is already ternary"),
        (lambda: MaskView(torch.ones(6, 6)), lambda: MaskView(torch.ones(1, 1)), "already under a mask view"),
    ],
)
def test_stacks_that_make_no_sense_are_refused(below, above, reason):
    linear = nn.Linear(6, 6)
    attach(linear, below())
    before = describe(linear)
    with pytest.raises(ViewError, match=reason):
        attach(linear, above())
    assert describe(linear) == before


def test_parts_of_a_fused_matrix_carry_views_of_their_own():
    for family, (one, other) in itertools.product(("gpt2", "gpt_neox", "modernbert"), [("query", "value")]):
        block = Anatomy.of(zoo.build(family)).blocks[0]
        untouched = block.key.weight.detach().clone()
        attach(block.matrices[one], QuantizedView("ternary", "matrix"))
        attach(block.matrices[other], QuantizedView("ternary", "matrix"))
        for role in (one, other):
            assert len(block.matrices[role].weight.detach().unique()) == 3
        assert torch.equal(block.key.weight, untouched)
        with pytest.raises(ViewError, match="the weight is already ternary"):
            attach(block.query, QuantizedView("ternary", "matrix"))
        with pytest.raises(ViewError, match="cannot slice one part of the fused"):
            attach(block.key, SliceView(Width(48)))


def test_a_tied_weight_is_baked_with_its_twin_or_not_at_all():
    model = zoo.build_headed("llama")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    table = Anatomy.of(model).word_embedding
    view = QuantizedView("ternary")
    attach(table, view)
    with pytest.raises(ViewError, match=r"`lm_head.weight` shares its weight .* attach the same view"):
        bake(model)
    assert len(list(attached(model))) == 1
    attach(model.lm_head, view)
    viewed = outputs(model, "llama")
    bake(model)
    assert model.lm_head.weight is table.module.weight
    assert_equal_enough(outputs(model, "llama"), viewed)


def test_foreign_parametrizations_are_left_alone():
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    other = nn.Linear(4, 4)
    attach(other, QuantizedView("ternary", "matrix"))
    nn.utils.parametrize.register_parametrization(other, "weight", nn.Softplus())
    bake(linear)
    assert nn.utils.parametrize.is_parametrized(linear)
    with pytest.raises(ViewError, match="not a view"):
        bake(other)
    assert nn.utils.parametrize.is_parametrized(other)


def test_minilm_for_real():
    from transformers import AutoModel, AutoTokenizer

    from slimformer import models

    folder = models.resolve("minilm")
    model = AutoModel.from_pretrained(folder).eval()
    base = {name: value.clone() for name, value in model.state_dict().items()}
    batch = AutoTokenizer.from_pretrained(folder)(["a real text", "and one more"], padding=True, return_tensors="pt")
    view_everything(model)
    with torch.no_grad():
        viewed = model(**batch).last_hidden_state
        assert_equal_enough(bake(copy.deepcopy(model))(**batch).last_hidden_state, viewed)
    strip(model)
    assert all(torch.equal(value, base[name]) for name, value in model.state_dict().items())


def test_stories_for_real(stories):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32).eval()
    view_everything(model, order=("mask",))
    ids = torch.randint(5, 999, (2, 12))
    with torch.no_grad():
        viewed = model(input_ids=ids).logits
        assert_equal_enough(bake(copy.deepcopy(model))(input_ids=ids).logits, viewed)
