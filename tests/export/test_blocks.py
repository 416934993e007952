"""Weights in blocks are the packed weights, at any width, and ONNX Runtime reads them as such."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import ArtifactError
from slimformer.formats import PackedWeight, find_format, find_layout, pack
from slimformer.integrations.onnx.matrices import FAST, packed_blocks, rounded_blocks
from slimformer.registry import FORMATS

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

LAYOUTS = [layout.name for name in FORMATS for layout in find_format(name).layouts]
WIDTHS = (7, 100, 192, 312, 384)
#: The fewest bits of the operator that hold the codes.
BITS = {"binary": 2, "ternary": 2, "ternary-small": 2, "int2": 4, "int3": 4, "int4": 4, "int8": 8}
GROUPS = (None, 16, 32, 48, 64, 128, 160, 1024)


def packed(layout: str, rows: int, columns: int, group: int | None = None, seed: int = 0) -> PackedWeight:
    number_format, how = find_layout(layout)
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.tensor(list(how.allowed), dtype=torch.int8)
    codes = allowed[torch.randint(len(allowed), (rows, columns), generator=generator)]
    groups = 1 if group is None else -(-columns // group)
    scales = torch.rand(rows, groups, generator=generator) + 0.1
    return PackedWeight(number_format, how, pack(codes, how), scales, columns, group)


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    rows=st.integers(1, 6), columns=st.integers(1, 700), group=st.sampled_from([None, 16, 32, 48, 64, 128, 160, 1024])
)
@settings(max_examples=40, deadline=None)
def test_blocks_hold_the_packed_weight_bit_for_bit(layout, table, rows, columns, group):
    weight = packed(layout, rows, columns, group)
    blocks = packed_blocks(weight, "w", table)
    assert torch.equal(blocks.weight(), weight.weight())
    assert blocks.form.bits == BITS[layout]
    assert blocks.block_size >= 16
    assert blocks.block_size & (blocks.block_size - 1) == 0
    count = -(-columns // blocks.block_size)
    assert blocks.scales.shape == (rows, count)
    assert table or blocks.codes.shape == (rows, count, blocks.block_size * blocks.form.bits // 8)


def test_one_scale_for_the_whole_matrix():
    weight = packed("ternary", 5, 100)
    shared = replace(weight, scales=weight.scales[:1])
    assert torch.equal(packed_blocks(shared, "w").weight(), shared.weight())


def test_blocks_are_those_of_the_smallest_file():
    assert [packed_blocks(packed("ternary", 1, width), "w").block_size for width in WIDTHS] == [32, 128, 64, 64, 128]


def test_groups_that_no_block_fits_are_refused():
    with pytest.raises(ArtifactError, match=r"`query.weight` has one scale for 24 weights.*multiple of 32"):
        packed_blocks(packed("ternary", 2, 96, group=24), "query.weight")


def test_a_format_without_an_operator_is_refused():
    weight = packed("ternary", 2, 32)
    alone = replace(weight, format=replace(weight.format, name="thirds", onnx=None))
    with pytest.raises(ArtifactError, match="`w` is thirds, which no operator of ONNX computes with; export with"):
        packed_blocks(alone, "w")


@pytest.mark.parametrize("width", WIDTHS)
def test_rounding_to_eight_bits(width):
    weight = torch.randn(9, width)
    blocks = rounded_blocks(weight)
    steps = blocks.scales.repeat_interleave(blocks.block_size, dim=1)[:, :width]
    assert ((blocks.weight() - weight).abs() <= 0.5001 * steps).all()


def run(node: str, inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray], **attributes: int) -> np.ndarray:
    made = onnx.helper.make_node(node, [*inputs, *constants], ["y"], domain="com.microsoft", **attributes)
    if node == "GatherBlockQuantized":
        made.input[:] = ["codes", "ids", "scales"]
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    graph = onnx.helper.make_graph(
        [made],
        "one",
        [onnx.helper.make_tensor_value_info(name, kinds[name], value.shape) for name, value in inputs.items()],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    versions = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=versions, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("layout", ["ternary", "binary", "int2", "int3", "int4", "int8"])
def test_the_operator_multiplies_by_these_weights(layout, width):
    blocks = packed_blocks(packed(layout, 13, width), "w")
    assert blocks.block_size in FAST
    x = torch.randn(2, 5, width)
    expected = (x @ blocks.weight().T).numpy()
    settings = {"K": width, "N": 13, "bits": blocks.form.bits, "block_size": blocks.block_size}
    constants = {"codes": blocks.codes.numpy(), "scales": blocks.scales.numpy()}
    exact = run("MatMulNBits", {"x": x.numpy()}, constants, accuracy_level=1, **settings)
    np.testing.assert_allclose(exact, expected, atol=2e-5 * np.abs(expected).max())
    # In int8 each block of a row has its own scale; a value is off by half a step at most.
    quick = run("MatMulNBits", {"x": x.numpy()}, constants, accuracy_level=4, **settings)
    starts = range(0, width, blocks.block_size)
    bound = sum(
        (x[..., at : at + blocks.block_size].abs().amax(-1, keepdim=True) / 127 * 0.51)
        * blocks.weight()[:, at : at + blocks.block_size].abs().sum(1)
        for at in starts
    )
    assert (np.abs(quick - expected) <= bound.numpy() + 1e-5).all()
    assert not np.array_equal(quick, exact), "the kernel has no int8 arithmetic for these blocks"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("layout", ["ternary", "int4", "int8"])
def test_the_operator_looks_up_these_rows(layout, width):
    blocks = packed_blocks(packed(layout, 13, width), "w", table=True)
    ids = torch.tensor([[0, 12, 3], [3, 3, 7]])
    constants = {"codes": blocks.codes.numpy(), "scales": blocks.scales.numpy()}
    settings = {"bits": blocks.form.bits, "block_size": blocks.block_size, "gather_axis": 0, "quantize_axis": 1}
    found = run("GatherBlockQuantized", {"ids": ids.numpy()}, constants, **settings)
    np.testing.assert_array_equal(found[..., :width], blocks.weight()[ids].numpy())
