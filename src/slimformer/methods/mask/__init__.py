"""Masking: one bit per weight and task, learned; the base stays as it is."""

from slimformer.methods.mask.config import MaskConfig
from slimformer.methods.mask.method import mask

__all__ = ["MaskConfig", "mask"]
