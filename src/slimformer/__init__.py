"""One pretrained Transformer in; small, fast, elastic, task-ready models out.

Importing this package is quick: torch and transformers are loaded when a name that needs them is
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slimformer.distribution import check_installed, explain_missing, is_whole, needs_all

check_installed()
if is_whole():
    from slimformer.integrations.transformers import register_with_transformers
    from slimformer.registry import METHODS
else:
    explain_missing()

if TYPE_CHECKING:
    from slimformer import (
        anatomy,
        artifact,
        corpus,
        errors,
        integrations,
        models,
        objectives,
        sizes,
        taps,
        tasks,
        views,
    )
    from slimformer.anatomy import Anatomy
    from slimformer.artifact import load, save, verify
    from slimformer.inference.extraction import extract
    from slimformer.taps import Taps, run_until

__version__ = "0.1.0"

__all__ = [
    "Anatomy",
    "Taps",
    "__version__",
    "anatomy",
    "artifact",
    "corpus",
    "errors",
    "extract",
    "integrations",
    "load",
    "models",
    "objectives",
    "run_until",
    "save",
    "sizes",
    "taps",
    "tasks",
    "verify",
    "views",
    *(METHODS.own if is_whole() else ()),
]

_SUBMODULES = frozenset(
    {
        "anatomy",
        "artifact",
        "corpus",
        "errors",
        "integrations",
        "models",
        "objectives",
        "sizes",
        "taps",
        "tasks",
        "views",
    }
)
_NAMES = {
    "Anatomy": "slimformer.anatomy",
    "Taps": "slimformer.taps",
    "extract": "slimformer.inference.extraction",
    "load": "slimformer.artifact",
    "run_until": "slimformer.taps",
    "save": "slimformer.artifact",
    "verify": "slimformer.artifact",
}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"slimformer.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if not is_whole():
        raise AttributeError(needs_all(f"slimformer.{name}"))
    if name in METHODS:
        from slimformer.methods.run import function_of

        return function_of(METHODS.get(name))
    raise AttributeError(f"module `slimformer` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted({*__all__, *(METHODS if is_whole() else ())})


if is_whole():
    register_with_transformers()
