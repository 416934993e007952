"""The compiled kernels: whether they are here, and which instruction set computes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from slimformer.errors import ConfigError

#: Names the instruction set to compute with, in place of the fastest this machine has.
VARIABLE = "SLIMFORMER_ISA"


@dataclass(frozen=True)
class NativeRuntime:
    """What computes on this machine.

    Args:
        instruction_set: The one in use.
        available: All that this machine and this build have, fastest first.
        threads: Threads that can work at once.
    """

    instruction_set: str
    available: tuple[str, ...]
    threads: int


@cache
def _module() -> Any:
    return import_module("slimformer.runtime._native")


def kernels() -> Any:
    """The compiled module.

    Raises:
        ConfigError: Where slimformer was installed without it.
    """
    try:
        return _module()
    except ImportError as error:
        raise ConfigError(
            f"the native kernels are not here ({error}); install a wheel of slimformer-runtime, or slimformer where "
            "there is a C++ compiler"
        ) from error


def is_built() -> bool:
    """Whether the compiled kernels can be imported."""
    try:
        _module()
    except ImportError:
        return False
    return True


def instruction_set() -> str:
    """The instruction set to compute with: the fastest one, or that of `SLIMFORMER_ISA`."""
    available = kernels().instruction_sets()
    chosen = os.environ.get(VARIABLE) or available[0]
    if chosen not in available:
        raise ConfigError(f"{VARIABLE} is `{chosen}`, and this machine has {', '.join(available)}; give one of these")
    return str(chosen)


def describe_runtime() -> NativeRuntime:
    """What `slimformer inspect --runtime` says."""
    module = kernels()
    return NativeRuntime(instruction_set(), tuple(module.instruction_sets()), module.threads())
