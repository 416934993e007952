"""The compiled kernels: whether they are here and switched on, and which instruction set computes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from slimformer.errors import ConfigError

#: Names the instruction set to compute with, in place of the fastest this machine has.
VARIABLE = "SLIMFORMER_ISA"
#: What it is set to for a runtime without kernels.
OFF = "none"
#: Other names of instruction sets.
ALIASES = {"scalar": "portable"}


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
        ConfigError: Where slimformer was installed without it, or it is switched off.
    """
    reason = absence()
    if reason is not None:
        raise ConfigError(reason)
    return _module()


def absence() -> str | None:
    """Why the kernels cannot be used, and what to do; None where they can."""
    if os.environ.get(VARIABLE) == OFF:
        return f"the native kernels are switched off by {VARIABLE}, which is `{OFF}`; unset it to have them"
    try:
        _module()
    except ImportError as error:
        return (
            f"the native kernels are not here ({error}); install a wheel of slimformer-runtime, or slimformer where "
            "there is a C++ compiler"
        )
    return None


def is_built() -> bool:
    """Whether the compiled kernels can be imported, and are not switched off."""
    return absence() is None


def instruction_set() -> str:
    """The instruction set to compute with: the fastest one, or that of `SLIMFORMER_ISA`."""
    available = kernels().instruction_sets()
    named = os.environ.get(VARIABLE) or available[0]
    chosen = ALIASES.get(named, named)
    if chosen not in available:
        raise ConfigError(
            f"{VARIABLE} is `{named}`, and this machine has {', '.join(available)}; give one of these, or `{OFF}` to "
            "compute in torch alone"
        )
    return str(chosen)


def describe_runtime() -> NativeRuntime:
    """What `slimformer inspect --runtime` says."""
    module = kernels()
    return NativeRuntime(instruction_set(), tuple(module.instruction_sets()), module.threads())
