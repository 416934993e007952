"""The native engine behind the one door."""

from slimformer.inference.native.opening import OpenNative, is_native, open_floats, open_packed, refuse_with_engine

__all__ = ["OpenNative", "is_native", "open_floats", "open_packed", "refuse_with_engine"]
