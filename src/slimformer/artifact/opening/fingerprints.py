"""The fingerprint of weights: a sum over names, types, shapes and values, which no division into files changes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.runtime.mapping import BFLOAT16

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slimformer.runtime.onnx import Array


def combine(digests: Iterable[tuple[str, str]]) -> str:
    """One sum of the names and sums of all tensors, in whatever order these come."""
    total = hashlib.sha256()
    for name, digest in sorted(digests):
        # The length keeps a name that holds a newline from passing for two tensors.
        total.update(f"{len(name)} {name} {digest}\n".encode())
    return total.hexdigest()


def digest(kind: str, shape: Sequence[int], values: Any) -> str:
    """The sum of one tensor.

    Args:
        kind: Its type as torch calls it.
        shape: Its shape.
        values: Its bytes, as a buffer.
    """
    total = hashlib.sha256(f"{kind} {list(shape)}\n".encode())
    total.update(values)
    return total.hexdigest()


def fingerprint_of(tensors: Mapping[str, Array]) -> str:
    """The fingerprint of weights in NumPy; tensors of int64, which number positions, are left out."""
    return combine((name, _digest(each)) for name, each in tensors.items() if each.dtype != np.int64)


def _digest(stored: Array) -> str:
    kind = "bfloat16" if stored.dtype == BFLOAT16 else str(stored.dtype)
    flat = np.ascontiguousarray(stored).reshape(-1)
    return digest(kind, stored.shape, flat.view(np.uint8).data)
