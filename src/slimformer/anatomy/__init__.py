"""What a model is made of, declared as data per family."""

from slimformer.anatomy import families  # noqa: F401  (registers the families known)
from slimformer.anatomy.anatomy import Anatomy, find, unwrap
from slimformer.anatomy.block import Block
from slimformer.anatomy.census import Census, PartCount
from slimformer.anatomy.family import Family, Fused, family_of, known, register
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
