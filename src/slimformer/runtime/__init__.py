"""What packed models are made of on disk and in memory: several codes to a byte."""

from slimformer.runtime.packing import LAYOUTS, Layout, layout_for, layout_of, pack, unpack

__all__ = ["LAYOUTS", "Layout", "layout_for", "layout_of", "pack", "unpack"]
