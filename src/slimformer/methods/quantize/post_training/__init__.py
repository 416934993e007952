"""Quantization without labels: rounding with error compensation, and a short lesson from the float model."""
