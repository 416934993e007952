"""Numbers as bytes: levels of a few bits, what shares a scale, and codes packed into bytes and back.

Nothing here knows of views or models. A format is one object of data, registered by one line in `registry.FORMATS`.
"""

from slimformer.formats.number import Granularity, NumberFormat, OnnxForm, find_format, find_layout
from slimformer.formats.packing import BITS, Layout, PackedWeight, pack, unpack

__all__ = [
    "BITS",
    "Granularity",
    "Layout",
    "NumberFormat",
    "OnnxForm",
    "PackedWeight",
    "find_format",
    "find_layout",
    "pack",
    "unpack",
]
