"""The native engine behind the one door."""

from slimformer.inference.native.opening import (
    OpenNative,
    OpenNativeDecoder,
    is_native,
    open_floats,
    open_nested,
    open_packed,
    refuse_with_engine,
)

__all__ = [
    "OpenNative",
    "OpenNativeDecoder",
    "is_native",
    "open_floats",
    "open_nested",
    "open_packed",
    "refuse_with_engine",
]
