"""Quantization: a few levels per weight, 8-bit activations, learned from the float model."""

from slimformer.methods.quantize.config import QuantizeConfig
from slimformer.methods.quantize.method import quantize

__all__ = ["QuantizeConfig", "quantize"]
