"""Tensors that are mapped from files against those that the format's own reader copies."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from slimformer.runtime.mapping import BFLOAT16, TYPES, as_floats, map_tensors

TORCH_TYPES = {
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def write(file, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def test_all_types_have_a_test():
    assert TORCH_TYPES.keys() == TYPES.keys()


@settings(deadline=None, max_examples=60)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from(sorted(TORCH_TYPES)), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=5
    ),
    metadata=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
)
def test_what_was_saved_is_mapped(tmp_path_factory, shapes, metadata):
    rng = torch.Generator().manual_seed(len(shapes))
    tensors = {
        f"tensor {at}": (torch.rand(shape, generator=rng) * 100).to(TORCH_TYPES[kind])
        for at, (kind, shape) in enumerate(shapes)
    }
    file = tmp_path_factory.mktemp("mapped") / "model.safetensors"
    file.write_bytes(save(tensors, metadata=metadata))
    mapped = map_tensors(file)
    assert mapped.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert mapped[name].shape == tuple(tensor.shape)
        assert not mapped[name].flags.writeable
        if tensor.dtype is torch.bfloat16:
            assert np.array_equal(as_floats(mapped[name]), tensor.float().numpy())
        else:
            assert mapped[name].dtype == tensor.numpy().dtype
            assert np.array_equal(mapped[name], tensor.numpy())


def test_every_bfloat16_becomes_the_float_it_is():
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    assert np.array_equal(as_floats(bits.view(BFLOAT16)).view(np.uint32), expected.view(np.uint32))


def test_floats_that_lie_anywhere_are_aligned(tmp_path):
    header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}
    file = write(tmp_path / "model.safetensors", header, b"\0" + np.array([1, 2], "<f4").tobytes())
    floats = as_floats(map_tensors(file)["a"])
    assert floats.flags.aligned
    assert floats.tolist() == [1, 2]


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe{}", "is not UTF-8"),
        ([], "no object"),
        ({"a": 7}, "no shape or place"),
        ({"a": {**ENTRY, "shape": [-2]}}, "no shape or place"),
        ({"a": {**ENTRY, "shape": [True, 2]}}, "no shape or place"),
        ({"a": {**ENTRY, "data_offsets": [0]}}, "no shape or place"),
        ({"a": {**ENTRY, "data_offsets": [0.0, 8]}}, "no shape or place"),
        ({"a": {**ENTRY, "dtype": "F8_E4M3"}}, "`a` is of `F8_E4M3`, and none of BF16"),
        ({"a": {**ENTRY, "shape": [3]}}, "`a` takes 12 bytes, and lies at 0 to 8 of 8"),
        ({"a": {**ENTRY, "shape": [1 << 62, 4]}}, "bytes, and lies at"),
        ({"a": {**ENTRY, "data_offsets": [4, 12]}}, "lies at 4 to 12 of 8"),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, "lies at 8 to 0 of 8"),
    ],
)
def test_forged_headers_are_refused(tmp_path, header, message):
    with pytest.raises(ValueError, match=message):
        map_tensors(write(tmp_path / "model.safetensors", header, bytes(8)))


@pytest.mark.parametrize("content", [b"", b"\1", b"\x08" + bytes(7), b"\xff" * 8 + b"{}"])
def test_files_that_end_too_early_are_refused(tmp_path, content):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"it is empty|its header has \d+ bytes"):
        map_tensors(file)
