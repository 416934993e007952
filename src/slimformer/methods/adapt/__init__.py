"""Further pre-training with self-distillation: a model of the language or images of one domain (arXiv 2210.02871)."""

from slimformer.methods.adapt.config import AdaptConfig

__all__ = ["AdaptConfig"]
