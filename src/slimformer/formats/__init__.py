"""Numbers as bytes: levels of a few bits, what shares a scale, and codes packed into bytes and back.

Nothing here knows of views or models. A format is one object of data, registered by one line in `registry.FORMATS`.
How codes lie in bytes, `formats.layout`, is known without torch.
"""

from typing import TYPE_CHECKING

from slimformer.formats.layout import BITS, Layout
from slimformer.lazy import lazy

if TYPE_CHECKING:
    from slimformer.formats.gguf import GgufForm
    from slimformer.formats.number import Granularity, NumberFormat, OnnxForm, find_format, find_layout
    from slimformer.formats.packing import PackedWeight, pack, unpack

__all__ = [
    "BITS",
    "GgufForm",
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
__getattr__ = lazy(
    __name__,
    {
        "gguf": ("GgufForm",),
        "number": ("Granularity", "NumberFormat", "OnnxForm", "find_format", "find_layout"),
        "packing": ("PackedWeight", "pack", "unpack"),
    },
)


def __dir__() -> list[str]:
    return __all__
