"""Packing codes into bytes and back: every shape and every value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import FormatError
from slimformer.formats import BITS, Layout, find_format, pack, unpack
from slimformer.registry import FORMATS

LAYOUTS = {layout.name: layout for name in FORMATS for layout in find_format(name).layouts}
LAYOUTS |= {"bits": BITS, "five digits of seven in two bytes": Layout("odd", 7, 5, -3, bytes=2)}

shapes = st.lists(st.integers(0, 5), max_size=2)
columns = st.integers(0, 70)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(shape=shapes, columns=columns, seed=st.integers(0, 2**16))
@settings(max_examples=80, deadline=None)
def test_every_shape_comes_back(layout, shape, columns, seed):
    layout = LAYOUTS[layout]
    allowed = torch.tensor(list(layout.allowed), dtype=torch.int8)
    generator = torch.Generator().manual_seed(seed)
    codes = allowed[torch.randint(len(allowed), (*shape, columns), generator=generator)]
    packed = pack(codes, layout)
    assert packed.dtype == torch.uint8
    assert packed.shape == (*shape, layout.bytes_for(columns))
    assert torch.equal(unpack(packed, layout, columns), codes)
    # A row is packed as if it were alone.
    if codes.numel():
        first = codes.flatten(0, -2)[0] if codes.dim() > 1 else codes
        assert torch.equal(pack(first, layout), packed.flatten(0, -2)[0] if codes.dim() > 1 else packed)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_value_at_every_place(layout):
    layout = LAYOUTS[layout]
    for place in range(layout.digits):
        for code in layout.allowed:
            row = torch.full((layout.digits + 1,), layout.allowed[0], dtype=torch.int8)
            row[place] = code
            assert torch.equal(unpack(pack(row, layout), layout, layout.digits + 1), row)


@pytest.mark.parametrize(
    ("layout", "codes", "expected"),
    [
        ("ternary", [-1, 0, 1, 1], [0b11_11_10_01]),
        ("ternary", [1], [0b10_10_10_11]),
        ("ternary-small", [-1, 0, 1, 1, 0], [0 + 1 * 3 + 2 * 9 + 2 * 27 + 1 * 81]),
        ("binary", [1, -1, 1, 1, -1, -1, -1, -1, 1], [0b1101, 1]),
        ("int2", [-3, -1, 1, 3], [0b11_10_01_00]),
        # Digits 0 to 7 are 0o76543210 = 0xFAC688, the lowest byte first.
        ("int3", [-7, -5, -3, -1, 1, 3, 5, 7], [0x88, 0xC6, 0xFA]),
        ("int3", [7, 7, 7], [0b11_111_111, 0b1, 0]),
        ("int4", [-8, 7, 0], [0xF0, 0x88]),
        ("int8", [-128, 0, 127], [0, 128, 255]),
        ("bits", [1, 0, 1, 1, 0, 0, 0, 0, 1], [0b1101, 1]),
    ],
)
def test_bytes_by_hand(layout, codes, expected):
    assert pack(torch.tensor(codes, dtype=torch.int8), LAYOUTS[layout]).tolist() == expected


@pytest.mark.parametrize(
    ("layout", "size"),
    [("ternary", 96), ("ternary-small", 77), ("binary", 48), ("int2", 96), ("int3", 144), ("int4", 192), ("int8", 384)],
)
def test_sizes(layout, size):
    codes = torch.full((3, 384), LAYOUTS[layout].allowed[0], dtype=torch.int8)
    assert pack(codes, LAYOUTS[layout]).shape == (3, size)


@given(count=st.integers(1, 70), seed=st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_bits_of_booleans_are_packed_as_numpy_does(count, seed):
    flags = torch.rand(count, generator=torch.Generator().manual_seed(seed)) > 0.5
    packed = pack(flags, BITS)
    assert packed.tolist() == np.packbits(flags.numpy(), bitorder="little").tolist()
    assert torch.equal(unpack(packed, BITS, count).bool(), flags)
    assert torch.equal(pack(flags.to(torch.int8), BITS), packed)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(code=st.integers(-(2**15), 2**15 - 1))
@settings(max_examples=60, deadline=None)
def test_other_codes_are_refused(layout, code):
    layout = LAYOUTS[layout]
    codes = torch.tensor([[layout.allowed[0], code]], dtype=torch.int32)
    if code in layout.allowed:
        assert unpack(pack(codes, layout), layout, 2)[0, 1] == code
    else:
        with pytest.raises(FormatError, match=f"`{code}` is no code of layout"):
            pack(codes, layout)


@pytest.mark.parametrize("layout", ["ternary", "ternary-small"])
@pytest.mark.parametrize("byte", range(256))
def test_bytes_that_are_no_codes_are_refused(layout, byte):
    """Any byte either comes back as it was or is an error; none is read as something else."""
    real = byte < 243 if layout == "ternary-small" else all(byte >> shift & 3 for shift in (0, 2, 4, 6))
    layout = LAYOUTS[layout]
    packed, columns = torch.tensor([byte], dtype=torch.uint8), layout.digits
    if real:
        assert torch.equal(pack(unpack(packed, layout, columns), layout), packed)
    else:
        with pytest.raises(FormatError, match="damaged"):
            unpack(packed, layout, columns)


@given(values=st.lists(st.integers(0, 255), min_size=2, max_size=2))
@settings(max_examples=200, deadline=None)
def test_several_bytes_that_are_no_codes_are_refused(values):
    layout, packed = LAYOUTS["five digits of seven in two bytes"], torch.tensor(values, dtype=torch.uint8)
    if values[0] + 256 * values[1] < 7**5:
        assert torch.equal(pack(unpack(packed, layout, 5), layout), packed)
    else:
        with pytest.raises(FormatError, match="damaged"):
            unpack(packed, layout, 5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: pack(torch.zeros(3), BITS), "give whole numbers"),
        (lambda: pack(torch.tensor(1, dtype=torch.int8), BITS), "with an axis"),
        (lambda: unpack(torch.zeros(2, 3, dtype=torch.uint8), LAYOUTS["ternary"], 20), "fill 5 bytes a row"),
        (lambda: unpack(torch.zeros(2, 3, dtype=torch.uint8), LAYOUTS["int3"], 9), "fill 6 bytes a row"),
        (lambda: unpack(torch.zeros(2, 3, dtype=torch.int8), LAYOUTS["ternary"], 12), "torch.int8"),
        (lambda: Layout("tight", base=3, digits=6, lowest=-1), "6 digits of base 3 in 1 bytes"),
        (lambda: Layout("wide", base=256, digits=1, lowest=0), "codes from 0 to 255"),
    ],
)
def test_impossible_calls_are_named(wrong, message):
    with pytest.raises(FormatError, match=message):
        wrong()
