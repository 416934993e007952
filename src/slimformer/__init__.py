"""One pretrained Transformer in; small, fast, elastic, task-ready models out.

Importing this package is quick: torch and transformers are loaded when a name that needs them is
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimformer import anatomy, checkpoint, errors, taps, views
    from slimformer.anatomy import Anatomy
    from slimformer.taps import Taps, run_until

__version__ = "0.1.0"

__all__ = [
    "Anatomy",
    "Taps",
    "__version__",
    "anatomy",
    "checkpoint",
    "errors",
    "run_until",
    "taps",
    "views",
]

_SUBMODULES = frozenset({"anatomy", "checkpoint", "errors", "taps", "views"})
_NAMES = {"Anatomy": "slimformer.anatomy", "Taps": "slimformer.taps", "run_until": "slimformer.taps"}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"slimformer.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module `slimformer` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted(__all__)
