"""The native engine behind the one door."""

from slimformer.inference.native.opening import (
    OpenNative,
    OpenNativeDecoder,
    is_native,
    open_floats,
    open_nested,
    open_packed,
    padded,
    refuse_with_engine,
    unpadded,
)

__all__ = [
    "OpenNative",
    "OpenNativeDecoder",
    "is_native",
    "open_floats",
    "open_nested",
    "open_packed",
    "padded",
    "refuse_with_engine",
    "unpadded",
]
