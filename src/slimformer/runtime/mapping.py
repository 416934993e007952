"""Tensors of safetensors files where they lie: mapped into memory, so that processes share what none of them copies."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.files import JsonError, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from slimformer.runtime.onnx import Array

#: A number that NumPy does not have: the upper half of a float32.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])

#: Types of numbers, by the names they have in files.
TYPES = {
    "BF16": BFLOAT16,
    **{
        name: np.dtype(numpy)
        for name, numpy in {
            "F64": "<f8",
            "F32": "<f4",
            "F16": "<f2",
            "I64": "<i8",
            "I32": "<i4",
            "I16": "<i2",
            "I8": "i1",
            "U64": "<u8",
            "U32": "<u4",
            "U16": "<u2",
            "U8": "u1",
            "BOOL": "?",
        }.items()
    },
}

#: Bytes of the longest header, as the format's own reader has it.
HEADER_BYTES = 100_000_000


def map_tensors(file: Path) -> dict[str, Array]:
    """The tensors of a file, which nothing may write to while they are used.

    Raises:
        OSError: Where it cannot be opened.
        ValueError: Where it is no such file, or is cut off; the message says how.
    """
    header, data = _parts(file)
    header.pop("__metadata__", None)
    return {name: _tensor(name, entry, data) for name, entry in header.items()}


def map_metadata(file: Path) -> dict[str, str]:
    """What the header of a file says beside its tensors; it fails as `map_tensors` does."""
    metadata = _parts(file)[0].get("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is no object")
    return metadata


def _parts(file: Path) -> tuple[dict[str, Any], Array]:
    """The header of a file and the bytes behind it."""
    if not file.stat().st_size:
        raise ValueError("it is empty")
    bytes_ = np.memmap(file, np.uint8, "r")
    length = int.from_bytes(bytes_[:8].tobytes(), "little")
    if length > min(HEADER_BYTES, len(bytes_) - 8):
        raise ValueError(f"its header has {length} bytes, and the file {len(bytes_)}")
    try:
        header = parse_json(bytes_[8 : 8 + length].tobytes(), halves=True, repeats=False)
    except JsonError as error:
        raise ValueError(f"its header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header, bytes_[8 + length :]


def as_floats(stored: Array) -> Array:
    """Numbers of a kind of floats in float32; those that are too large for it become infinite."""
    if stored.dtype == BFLOAT16:
        return (stored["bfloat16"].astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        return np.require(stored, np.float32, ["C", "A"])


def release(tensors: Mapping[str, Array]) -> None:
    """Give back the memory that reading mapped tensors took; whatever is asked of them later is read again."""
    mapped = {id(file): file for tensor in tensors.values() if (file := getattr(tensor, "_mmap", None)) is not None}
    for file in mapped.values():
        if hasattr(file, "madvise"):  # not on every system
            file.madvise(mmap.MADV_DONTNEED)


def _tensor(name: str, entry: Any, data: Array) -> Array:
    entry = entry if isinstance(entry, dict) else {}
    shape, place = entry.get("shape"), entry.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(place) or len(place) != 2:
        raise ValueError(f"`{name}` has no shape or place")
    kind = TYPES.get(str(entry.get("dtype")))
    if kind is None:
        raise ValueError(f"`{name}` is of `{entry.get('dtype')}`, and none of {', '.join(TYPES)}")
    begin, end = place
    size = kind.itemsize
    for side in shape:
        size *= side
    if begin > end or end > len(data) or end - begin != size:
        raise ValueError(f"`{name}` takes {size} bytes, and lies at {begin} to {end} of {len(data)}")
    return data[begin:end].view(kind).reshape(shape)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
