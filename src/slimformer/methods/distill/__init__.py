"""Distillation: a small student learns what a large teacher's attention relates."""

from slimformer.methods.distill.config import DistillConfig, StudentShape

__all__ = ["DistillConfig", "StudentShape"]
