"""Blocks of GGUF are those of llama.cpp, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slimformer import registry
from slimformer.errors import FormatError
from slimformer.formats import Granularity, find_format
from slimformer.formats.gguf import Q1_0, Q2_0, Q4_0, Q8_0, TQ2_0, smallest

FORMS = [(name, form) for name in registry.FORMATS for form in find_format(name).gguf]
COLUMNS = 512


def quantized(name: str, rows: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a random weight."""
    weight = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(0))
    return find_format(name).quantize(weight, Granularity("row"))


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_blocks_are_unpacked_to_the_same(name, form):
    codes, scales = quantized(name)
    halves = form.spread(scales, 5, COLUMNS)
    packed = form.pack(codes, halves)
    assert packed.shape == (5, COLUMNS // form.block * form.block_bytes)
    for found, expected in zip(form.unpack(packed, COLUMNS), (codes, halves), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(form.weight(packed, COLUMNS), codes * scales.half().float())


@pytest.mark.parametrize(("name", "form"), [pair for pair in FORMS if pair[1] not in (Q1_0, Q2_0)])
def test_the_package_reads_the_same(name, form):
    gguf = pytest.importorskip("gguf")
    number = gguf.GGMLQuantizationType(form.number)
    assert (number.name, gguf.GGML_QUANT_SIZES[number]) == (form.name, (form.block, form.block_bytes))
    assert gguf.LlamaFileType(form.file_type).name == f"MOSTLY_{form.name}"
    codes, scales = quantized(name)
    packed = form.pack(codes, form.spread(scales, 5, COLUMNS))
    assert np.array_equal(gguf.quants.dequantize(packed.numpy(), number), form.weight(packed, COLUMNS).numpy())


@pytest.mark.parametrize(("name", "form", "bits"), [("ternary", Q2_0, 2), ("binary", Q1_0, 1), ("binary", Q2_0, 2)])
def test_types_that_the_package_does_not_read(name, form, bits):
    """Bit by bit, as the types are defined: the scale, then codes from the lowest bits on."""
    codes, scales = quantized(name, rows=1)
    (packed,) = form.pack(codes, form.spread(scales, 1, COLUMNS)).numpy()
    values = []
    for block in packed.reshape(-1, form.block_bytes):
        scale = float(block[:2].view(np.float16)[0])
        number = int.from_bytes(block[2:].tobytes(), "little")
        digits = [number >> bits * place & (1 << bits) - 1 for place in range(form.block)]
        values += [scale * (2 * digit - 1 if bits == 1 else digit - 1) for digit in digits]
    assert np.array_equal(np.array(values, np.float32), form.weight(torch.from_numpy(packed)[None], COLUMNS)[0].numpy())
    assert np.array_equal(np.sign(values), np.sign(codes[0].numpy()))


def test_scales_of_groups_and_of_a_matrix():
    scales = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert Q2_0.spread(scales, 2, 256, 128).tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]
    assert Q2_0.spread(torch.tensor([[5.0]]), 2, 128).tolist() == [[5, 5], [5, 5]]
    with pytest.raises(FormatError, match=r"a scale is 7e\+04, and those of GGUF .* at most 65504"):
        Q2_0.spread(torch.tensor([[7e4]]), 2, 128)


@pytest.mark.parametrize(
    ("columns", "group", "form"),
    [
        (512, None, TQ2_0),
        (384, None, Q2_0),
        (288, None, Q4_0),
        (512, 128, Q2_0),
        (512, 256, TQ2_0),
        (512, 1024, TQ2_0),
        (512, 32, Q4_0),
        (512, 48, None),
        (100, None, None),
    ],
)
def test_the_smallest_that_holds_a_ternary_weight(columns, group, form):
    assert smallest(find_format("ternary").gguf, columns, group) == form


def test_codes_beyond_a_type_are_refused():
    assert Q8_0.pack(torch.full((1, 32), -127, dtype=torch.int8), torch.ones(1, 1).half()).shape == (1, 34)
    with pytest.raises(FormatError, match="`-2` is no code"):
        Q2_0.pack(torch.full((1, 64), -2, dtype=torch.int8), torch.ones(1, 1).half())
