"""Masking: one bit per weight and task, learned; the base stays as it is."""

from slimformer.methods.mask.config import MaskConfig

__all__ = ["MaskConfig"]
