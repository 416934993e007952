"""What a model is made of, declared as data per family. The data are read without torch."""

from typing import TYPE_CHECKING

from slimformer.anatomy import families  # noqa: F401  (registers the families known)
from slimformer.anatomy.family import Family, Fused, family_of, known, register
from slimformer.lazy import lazy

if TYPE_CHECKING:
    from slimformer.anatomy.anatomy import Anatomy, find, unwrap
    from slimformer.anatomy.block import Block
    from slimformer.anatomy.census import Census, PartCount
    from slimformer.anatomy.matrix import Matrix, Part

__all__ = [
    "Anatomy",
    "Block",
    "Census",
    "Family",
    "Fused",
    "Matrix",
    "Part",
    "PartCount",
    "family_of",
    "find",
    "known",
    "register",
    "unwrap",
]
__getattr__ = lazy(
    __name__,
    {
        "anatomy": ("Anatomy", "find", "unwrap"),
        "block": ("Block",),
        "census": ("Census", "PartCount"),
        "matrix": ("Matrix", "Part"),
    },
)


def __dir__() -> list[str]:
    return __all__
