"""Adaptation: further pre-training on a domain with self-distillation (arXiv 2210.02871)."""
