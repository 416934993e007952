"""What packed models are made of on disk and in memory: several codes to a byte."""

from slimformer.runtime.packed import PackedWeight, keep_packed, keep_quantized, packed_weights
from slimformer.runtime.packing import LAYOUTS, Layout, layout_for, layout_of, pack, unpack

__all__ = [
    "LAYOUTS",
    "Layout",
    "PackedWeight",
    "keep_packed",
    "keep_quantized",
    "layout_for",
    "layout_of",
    "pack",
    "packed_weights",
    "unpack",
]
