"""Packing codes into bytes and back: every shape and every value."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import ArtifactError
from slimformer.runtime import LAYOUTS, layout_for, pack, unpack
from slimformer.views import BinaryView, IntegerView, TernaryView, attach, quantized_weights

shapes = st.lists(st.integers(0, 5), max_size=2)
columns = st.integers(0, 40)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(shape=shapes, columns=columns, seed=st.integers(0, 2**16))
@settings(max_examples=80, deadline=None)
def test_every_shape_comes_back(layout, shape, columns, seed):
    allowed = torch.tensor(list(LAYOUTS[layout].allowed), dtype=torch.int8)
    generator = torch.Generator().manual_seed(seed)
    codes = allowed[torch.randint(len(allowed), (*shape, columns), generator=generator)]
    packed = pack(codes, layout)
    assert packed.dtype == torch.uint8
    assert packed.shape == (*shape, LAYOUTS[layout].bytes_for(columns))
    assert torch.equal(unpack(packed, layout, columns), codes)
    # A row is packed as if it were alone.
    if codes.numel():
        first = codes.flatten(0, -2)[0] if codes.dim() > 1 else codes
        assert torch.equal(pack(first, layout), packed.flatten(0, -2)[0] if codes.dim() > 1 else packed)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_value_at_every_place(layout):
    allowed, per_byte = LAYOUTS[layout].allowed, LAYOUTS[layout].per_byte
    for place in range(per_byte):
        for code in allowed:
            row = torch.full((per_byte + 1,), allowed[0], dtype=torch.int8)
            row[place] = code
            assert torch.equal(unpack(pack(row, layout), layout, per_byte + 1), row)


def test_bytes_by_hand():
    assert pack(torch.tensor([-1, 0, 1, 1], dtype=torch.int8), "ternary").tolist() == [0b11_11_10_01]
    assert pack(torch.tensor([1], dtype=torch.int8), "ternary").tolist() == [0b10_10_10_11]
    assert pack(torch.tensor([-1, 0, 1, 1, 0], dtype=torch.int8), "ternary-small").tolist() == [
        0 + 1 * 3 + 2 * 9 + 2 * 27 + 1 * 81
    ]
    assert pack(torch.tensor([1, -1, 1, 1, -1, -1, -1, -1, 1], dtype=torch.int8), "binary").tolist() == [0b1101, 1]
    assert pack(torch.tensor([-3, -1, 1, 3], dtype=torch.int8), "int2").tolist() == [0b11_10_01_00]
    assert pack(torch.tensor([-8, 7, 0], dtype=torch.int8), "int4").tolist() == [0xF0, 0x88]
    assert pack(torch.tensor([-128, 0, 127], dtype=torch.int8), "int8").tolist() == [0, 128, 255]


def test_sizes():
    codes = torch.zeros(3, 384, dtype=torch.int8)
    assert pack(codes, "ternary").shape == (3, 96)
    assert pack(codes, "ternary-small").shape == (3, 77)
    assert pack(codes + 1, "binary").shape == (3, 48)
    assert pack(codes, "int4").shape == (3, 192)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(code=st.integers(-(2**15), 2**15 - 1))
@settings(max_examples=60, deadline=None)
def test_other_codes_are_refused(layout, code):
    codes = torch.tensor([[LAYOUTS[layout].allowed[0], code]], dtype=torch.int32)
    if code in LAYOUTS[layout].allowed:
        assert unpack(pack(codes, layout), layout, 2)[0, 1] == code
    else:
        with pytest.raises(ArtifactError, match=f"`{code}` is no code of layout"):
            pack(codes, layout)


@pytest.mark.parametrize("layout", ["ternary", "ternary-small"])
@pytest.mark.parametrize("byte", range(256))
def test_bytes_that_are_no_codes_are_refused(layout, byte):
    """Any byte either comes back as it was or is an error; none is read as something else."""
    packed, columns = torch.tensor([byte], dtype=torch.uint8), LAYOUTS[layout].per_byte
    real = byte < 243 if layout == "ternary-small" else all(byte >> shift & 3 for shift in (0, 2, 4, 6))
    if real:
        assert torch.equal(pack(unpack(packed, layout, columns), layout), packed)
    else:
        with pytest.raises(ArtifactError, match="damaged"):
            unpack(packed, layout, columns)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: pack(torch.zeros(3, dtype=torch.int8), "base-7"), "there is no layout `base-7`"),
        (lambda: pack(torch.zeros(3), "ternary"), "give whole numbers"),
        (lambda: pack(torch.tensor(1, dtype=torch.int8), "ternary"), "with an axis"),
        (lambda: unpack(torch.zeros(2, 3, dtype=torch.uint8), "ternary", 20), "fill 5 bytes a row"),
        (lambda: unpack(torch.zeros(2, 3, dtype=torch.int8), "ternary", 12), "torch.int8"),
    ],
)
def test_impossible_calls_are_named(wrong, message):
    with pytest.raises(ArtifactError, match=message):
        wrong()


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("columns", [384, 192, 312, 100, 7])
@pytest.mark.parametrize(
    "view", [TernaryView("row"), BinaryView("row"), *(IntegerView(bits) for bits in (2, 4, 8))], ids=repr
)
def test_what_views_show_fits_its_layout(view, columns, small):
    linear = torch.nn.Linear(columns, 12)
    attach(linear, view)
    (weight,) = quantized_weights(linear)
    layout = layout_for(weight.kind, weight.bits, small)
    packed = pack(weight.codes, layout)
    assert packed.numel() == 12 * LAYOUTS[layout].bytes_for(columns)
    assert torch.equal(unpack(packed, layout, columns) * weight.scales, linear.weight)
