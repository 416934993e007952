"""Elastic models: one training run, every size (MatFormer, arXiv 2310.07707)."""

from slimformer.methods.elastic.config import ElasticConfig

__all__ = ["ElasticConfig"]
