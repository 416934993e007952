"""Packages whose names are imported when they are first asked for, so that what needs no torch does not import it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: Its name.
        modules: The modules of it, and what each of them offers.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return look_up
