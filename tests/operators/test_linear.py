"""The operators against NumPy in 64 bits, against floats, and against themselves in other batches and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import ViewError
from slimformer.formats import PackedWeight, find_format
from slimformer.operators import PackedTensor, hold_packed
from slimformer.operators.panels import refusal
from slimformer.runtime.native import is_built
from slimformer.views.rounding import Rounding

pytestmark = pytest.mark.skipif(not is_built(), reason="slimformer was installed without a compiler")

FORMATS = ("ternary", "binary", "int2", "int3", "int4", "int8")
FORMS = st.tuples(
    st.sampled_from(FORMATS),
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from(["matrix", "row", 16, 48]),
    st.booleans(),
    st.booleans(),
)


def packed_weight(form, seed=0):
    name, rows, columns, shared, transposed, small = form
    number_format = find_format(name)
    draw = torch.Generator().manual_seed(seed)
    levels = torch.tensor(list(number_format.codes), dtype=torch.int8)
    codes = levels[torch.randint(len(levels), (rows, columns), generator=draw)]
    groups = -(-columns // shared) if isinstance(shared, int) else 1
    scales = torch.rand((1 if shared == "matrix" else rows), groups, generator=draw) + 0.1
    size = shared if isinstance(shared, int) else None
    return PackedWeight.of(number_format, codes, scales, size, transposed=transposed, small=small)


def held(form, seed=0):
    packed = packed_weight(form, seed)
    kept, tensor = hold_packed(packed, torch.float32)
    assert isinstance(tensor, PackedTensor)
    return packed, kept, tensor


def in_whole_numbers(packed, x):
    """The product, summed in int64 and scaled in float64."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    steps = np.where(largest > 0, 1 / np.where(largest > 0, largest, 1) * np.float32(127), 1).astype(np.float32)
    rounded = np.rint(x * steps).astype(np.int64)
    codes, scales = packed.unpack().numpy().astype(np.int64), packed.scales.numpy().astype(np.float64)
    group = packed.group_size or packed.columns
    y = np.zeros((len(x), len(codes)))
    for number, start in enumerate(range(0, packed.columns, group)):
        part = slice(start, start + group)
        y += rounded[:, part] @ codes[:, part].T * scales[:, min(number, scales.shape[1] - 1)]
    return y / steps.astype(np.float64)


@settings(deadline=None, max_examples=150)
@given(FORMS, st.integers(0, 20), st.integers(0, 5))
def test_a_product_is_the_one_of_whole_numbers(form, tokens, seed):
    packed, _, tensor = held(form, seed)
    x = torch.randn(tokens, packed.columns, generator=torch.Generator().manual_seed(seed)) * 3
    bias = torch.randn(len(packed.codes), generator=torch.Generator().manual_seed(seed))
    y = tensor.product(x, bias).numpy()
    expected = in_whole_numbers(packed, x.numpy()) + bias.numpy().astype(np.float64)
    assert y.shape == expected.shape
    assert np.abs(y - expected).max(initial=0) <= 1e-5 * (1 + np.abs(expected).max(initial=0))


@settings(deadline=None, max_examples=60)
@given(FORMS, st.integers(0, 5))
def test_the_codes_come_back_and_rows_are_looked_up_bit_for_bit(form, seed):
    packed, kept, tensor = held(form, seed)
    assert torch.equal(kept.codes, packed.codes)
    assert torch.equal(tensor.dequantize(), packed.weight())
    assert torch.equal(tensor + 0, packed.weight())
    ids = torch.randint(len(packed.codes), (2, 3), generator=torch.Generator().manual_seed(seed))
    if not packed.transposed:
        assert torch.equal(torch.nn.functional.embedding(ids, tensor), packed.weight()[ids])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shared", ["matrix", "row", 32])
def test_a_layer_agrees_with_the_floats_it_stands_for(name, shared):
    packed, _, tensor = held((name, 96, 160, shared, False, False))
    x, bias = torch.randn(3, 7, 160), torch.randn(96)
    expected = torch.nn.functional.linear(Rounding()(x), packed.weight(), bias)
    assert (tensor.product(x, bias) - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_an_output_depends_neither_on_the_batch_nor_on_threads():
    _, _, tensor = held(("ternary", 130, 200, "row", False, False))
    x = torch.randn(40, 200)
    together = tensor.product(x, None)
    assert all(torch.equal(tensor.product(x[i : i + 1], None)[0], together[i]) for i in range(40))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(tensor.product(x, None), together)
    finally:
        torch.set_num_threads(before)
    with ThreadPoolExecutor(6) as pool:
        assert all(torch.equal(each, together) for each in pool.map(lambda _: tensor.product(x, None), range(60)))


def test_gradients_pass_as_through_floats():
    packed, _, tensor = held(("int4", 24, 48, 16, False, False))
    one, other = (torch.randn(5, 48, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    biases = [torch.zeros(24, requires_grad=True) for _ in range(2)]
    tensor.product(one, biases[0]).square().sum().backward()
    torch.nn.functional.linear(Rounding()(other), packed.weight(), biases[1]).square().sum().backward()
    assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-4 * float(other.grad.abs().max()))
    assert torch.allclose(biases[0].grad, biases[1].grad, rtol=1e-4)


def test_gradients_pass_through_a_single_vector():
    packed, _, tensor = held(("ternary", 6, 16, "row", False, False))
    x, bias = torch.randn(16, requires_grad=True), torch.zeros(6, requires_grad=True)
    tensor.product(x, bias).sum().backward()
    assert torch.equal(bias.grad, torch.ones(6))
    assert torch.allclose(x.grad, packed.weight().sum(0), atol=1e-5)


def test_what_comes_out_infinite_of_a_finite_input_is_no_fault_of_the_input():
    _, _, tensor = held(("ternary", 6, 16, "row", False, False))
    bias = torch.zeros(6)
    bias[2] = float("-inf")
    x = torch.randn(3, 16)
    expected = tensor.product(x, None)
    expected[:, 2] = float("-inf")
    assert torch.equal(tensor.product(x, bias), expected)
    with pytest.raises(ViewError, match="NaN or infinity"):
        tensor.product(torch.full((3, 16), float("nan")), bias)


def test_the_operators_are_what_torch_asks_of_them():
    _, _, tensor = held(("ternary", 20, 32, "row", False, False))
    checks = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    x = torch.randn(2, 3, 32, requires_grad=True)
    bias = torch.randn(20, requires_grad=True)
    torch.library.opcheck(torch.ops.slimformer.linear.default, (x, *tensor.weight, bias), test_utils=checks)
    torch.library.opcheck(torch.ops.slimformer.linear.default, (x, *tensor.weight), test_utils=checks)
    torch.library.opcheck(
        torch.ops.slimformer.embedding.default, (torch.tensor([[1, 2]]), *tensor.weight), test_utils=checks
    )
    torch.library.opcheck(torch.ops.slimformer.codes.default, tensor.weight, test_utils=checks)


def test_what_cannot_be_computed_is_refused():
    _, _, tensor = held(("ternary", 20, 32, "row", False, False))
    for value in (float("nan"), float("inf")):
        with pytest.raises(ViewError, match="NaN or infinity"):
            tensor.product(torch.full((2, 32), value), None)
    with pytest.raises(RuntimeError, match="31 features"):
        tensor.product(torch.zeros(2, 31), None)
    with pytest.raises(IndexError):
        torch.nn.functional.embedding(torch.tensor([20]), tensor)
    panels, scales, rows, columns, rule, group = tensor.weight
    for wrong in [
        (panels[:1], scales, rows, columns, rule, group),
        (panels, scales[:, :3].contiguous(), rows, columns, rule, group),
        (panels, scales, rows + 99, columns, rule, group),
        (panels, scales, rows, columns + 99, rule, group),
        (panels, scales, rows, columns, rule, 0),
    ]:
        with pytest.raises(ValueError, match=r"matrix|groups"):
            torch.ops.slimformer.codes(*wrong)


def test_what_the_kernels_do_not_know_is_left_to_torch():
    assert refusal(packed_weight(("ternary", 4, 32, "row", False, False))) is None
    odd = PackedWeight.of(find_format("ternary"), torch.zeros(2, 30, dtype=torch.int8), torch.ones(2, 5), 7)
    assert refusal(odd) == "groups of 7"
    assert hold_packed(odd, torch.float32) is None
    half = PackedWeight.of(find_format("ternary"), torch.zeros(2, 30, dtype=torch.int8), torch.ones(2, 1).half())
    assert refusal(half) == "scales in float16"
