"""Quantization: a few levels per weight, 8-bit activations, learned from the float model."""

from slimformer.methods.quantize.config import QuantizeConfig

__all__ = ["QuantizeConfig"]
