"""Slices: against the paper's reference block (golden file 05), and widths as state."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2Model

from slimformer import Anatomy
from slimformer.errors import ViewError
from slimformer.views import SliceView, Width, attach, bake, carried, enable_checkpointing, slice_neurons
from tests import zoo


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


#: Names of the reference block's parameters in a GPT-2 block, which has the same structure.
NAMES = {
    "attn_norm": "ln_1",
    "ff_norm": "ln_2",
    "att_proj": "attn.c_attn",
    "attn_out": "attn.c_proj",
    "ff_proj": "mlp.c_fc",
    "ff_out": "mlp.c_proj",
}


def reference_block(reference, case):
    """A GPT-2 block with the weights of the golden file; Conv1D stores them transposed."""
    config = GPT2Config(
        n_embd=case["d"],
        n_head=case["heads"],
        n_layer=1,
        n_inner=case["n_hidden"],
        activation_function=case["act"],
        layer_norm_epsilon=case["layer_norm_eps"],
        vocab_size=7,
    )
    model = GPT2Model(config).eval()
    block = Anatomy.of(model).blocks[0]
    for theirs, ours in NAMES.items():
        module = block.part(ours)
        for tensor in ("weight", "bias"):
            value = reference[f"{case['prefix']}.param.{theirs}.{tensor}"]
            getattr(module, tensor).data = value.T.contiguous() if value.dim() == 2 else value
    return block


@pytest.mark.parametrize("number", [0, 1])
def test_matformer_golden(golden, number):
    reference = golden("05_matformer_ffn")
    case = reference.meta["cases"][number]
    prefix = case["prefix"]
    block = reference_block(reference, case)
    width = slice_neurons(block)
    up, down = block.up.module.parametrizations, block.down.module.parametrizations
    summed = {}
    for factor, neurons in zip(case["factors"], case["k_per_factor"], strict=True):
        out = f"{prefix}.out.f{factor}"
        with width.at(neurons):
            close(block.module(reference[f"{prefix}.in.block_x"]), reference[f"{out}.block_out"])
            x = reference[f"{prefix}.in.ff_in"].requires_grad_()
            block.module.zero_grad()
            y = block.part("mlp")(x)
            y.backward(reference[f"{prefix}.in.grad_ffn_out"])
        close(y, reference[f"{out}.ffn_out"])
        grads = {
            "ff_in": x.grad,
            "ff_proj_weight": up.weight.original.grad.T,
            "ff_proj_bias": up.bias.original.grad,
            "ff_out_weight": down.weight.original.grad.T,
            "ff_out_bias": block.down.module.bias.grad,
        }
        for name, gradient in grads.items():
            close(gradient, reference[f"{out}.grad_{name}"])
            summed[name] = summed.get(name, 0) + gradient
    for name, gradient in summed.items():
        close(gradient, reference[f"{prefix}.out.sum_over_factors.grad_{name}"])


def test_width_in_a_with_block_is_seen_by_its_own_thread_only():
    linear = nn.Linear(4, 8)
    width = Width(8)
    attach(linear, SliceView(width))
    x = torch.randn(3, 4)
    barrier = threading.Barrier(4)
    wrong: list[tuple[int, int]] = []

    def serve(size: int) -> None:
        for _ in range(50):
            with width.at(size):
                barrier.wait()
                shown = linear(x).shape[-1]
                if shown != size:
                    wrong.append((size, shown))

    threads = [threading.Thread(target=serve, args=(size,)) for size in (2, 3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert linear(x).shape[-1] == 8


def test_width_returns_after_an_exception_and_nests():
    width = Width(8, 6)
    seen = []

    def fail():
        seen.append(width.value)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), width.at(2), width.at(1):
        fail()
    assert seen == [1]
    assert width.value == 6
    width.set(3)
    with width.at(5):
        width.set(4)
        assert width.value == 5
    assert width.value == 4


@pytest.mark.parametrize("value", [0, -1, 9])
def test_impossible_width_is_refused(value):
    width = Width(8)
    with pytest.raises(ViewError, match=f"width {value} is impossible; choose from 1 to 8"):
        width.set(value)
    with pytest.raises(ViewError, match="impossible"), width.at(value):
        pass


def test_a_slice_that_does_not_fit_is_refused():
    with pytest.raises(ViewError, match=r"= 9 rows does not fit .* which has 8"):
        attach(nn.Linear(4, 8), SliceView(Width(9)))


def test_an_embedding_is_sliced_in_width_and_vocabulary():
    table = nn.Embedding(10, 6)
    expected = table.weight.detach()[:4, :2]
    attach(table, SliceView(Width(6, 2), "columns"))
    attach(table, SliceView(Width(10, 4), "rows"))
    assert torch.equal(table(torch.arange(4)), expected)
    assert torch.equal(bake(table).weight, expected)
    assert (table.num_embeddings, table.embedding_dim) == (4, 2)


def test_chunks_are_cut_alike():
    linear = nn.Linear(4, 12)
    rows = torch.tensor([0, 1, 4, 5, 8, 9])
    weight, bias = linear.weight.detach()[rows], linear.bias.detach()[rows]
    attach(linear, SliceView(Width(4, 2), chunks=3))
    assert torch.equal(linear.weight, weight)
    assert torch.equal(linear.bias, bias)


def test_columns_of_the_slice_cost_no_arithmetic():
    """A nested half does half the multiplications, counted by torch itself."""
    from torch.utils.flop_counter import FlopCounterMode

    linear = nn.Linear(64, 128)
    width = Width(128)
    attach(linear, SliceView(width))

    def flops() -> int:
        with FlopCounterMode(display=False) as counter:
            linear(torch.randn(4, 64))
        return counter.get_total_flops()

    full = flops()
    with width.at(32):
        assert flops() * 4 == full


def test_a_function_carried_into_other_threads_has_the_widths_of_its_block():
    linear = nn.Linear(4, 8)
    width = Width(8)
    attach(linear, SliceView(width))
    x = torch.randn(3, 4)
    with ThreadPoolExecutor(4) as pool:
        with width.at(3):
            inside = list(pool.map(carried(linear), [x] * 4))
        outside = list(pool.map(linear, [x] * 4))
    assert {y.shape[-1] for y in inside} == {3}
    assert {y.shape[-1] for y in outside} == {8}


def test_a_copy_has_the_widths_in_force_and_goes_its_own_way():
    linear = nn.Linear(4, 8)
    width = Width(8, 6)
    attach(linear, SliceView(width))
    with width.at(3):
        copied = copy.deepcopy(linear)
        assert copied.weight.shape[0] == 3
        with width.at(2):
            assert copied.weight.shape[0] == 3
    assert (copied.weight.shape[0], linear.weight.shape[0]) == (3, 6)


@pytest.mark.parametrize("enclosing", [True, False], ids=["backward inside the block", "backward after it"])
def test_recomputed_activations_have_the_widths_of_the_forward(enclosing):
    """Gradients with checkpointing are those without, wherever the backward runs."""
    gradients = []
    for checkpointing in (False, True):
        model = zoo.build("bert").train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        width = slice_neurons(Anatomy.of(model).blocks[1])
        if checkpointing:
            enable_checkpointing(model)
        with width.at(10):
            loss = model(**zoo.inputs_for("bert")).last_hidden_state.square().mean()
            if enclosing:
                loss.backward()
        if not enclosing:
            thread = threading.Thread(target=loss.backward)  # as on a GPU, where it is never the forward's thread
            thread.start()
            thread.join()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert any(name.startswith("encoder.layer.1.intermediate") for name in gradients[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_one_graph_can_be_recomputed_several_times():
    """Terms are balanced by a gradient of each, all of one forward."""
    model = zoo.build("bert").train()
    enable_checkpointing(model)
    width = slice_neurons(Anatomy.of(model).blocks[1])
    with width.at(10):
        loss = model(**zoo.inputs_for("bert")).last_hidden_state.square().mean()
    weights = list(Anatomy.of(model).blocks[0].up.module.parameters())
    once, again = (torch.autograd.grad(loss, weights, retain_graph=True) for _ in range(2))
    for one, other in zip(once, again, strict=True):
        torch.testing.assert_close(one, other)
