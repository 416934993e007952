"""Distillation: a small student learns what a large teacher's attention relates."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimformer.methods.distill.config import DistillConfig, Start, StudentShape
    from slimformer.methods.distill.method import distill
    from slimformer.methods.distill.result import DistillResult
    from slimformer.methods.distill.student import build_student, copy_weights, source_blocks, student_config

__all__ = [
    "DistillConfig",
    "DistillResult",
    "Start",
    "StudentShape",
    "build_student",
    "copy_weights",
    "distill",
    "source_blocks",
    "student_config",
]

_HOMES = {
    "config": ("DistillConfig", "Start", "StudentShape"),
    "method": ("distill",),
    "result": ("DistillResult",),
    "student": ("build_student", "copy_weights", "source_blocks", "student_config"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
