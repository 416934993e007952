"""Which distribution is installed: all of slimformer, or `slimformer-runtime`, which is the part that answers alone.

Wheels of a release share no file: that of slimformer requires slimformer-runtime and holds the rest of the package.
What is installed from the sources holds both, as the file `BUNDLED` tells. Beside slimformer-runtime, known by the file
`RUNTIME`, it would own the same files, of which either takes those of the other along when it is removed; so that is
refused.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

BUNDLED = "BUNDLED"
RUNTIME = "RUNTIME"
#: A module that slimformer-runtime is without.
ELSEWHERE = "slimformer.registry"


@cache
def is_whole() -> bool:
    """Whether all of slimformer is here, from one distribution or from both."""
    return find_spec(ELSEWHERE) is not None


def check_installed(package: Path = Path(__file__).parent) -> None:
    """Refuse two installations that own the same files.

    Raises:
        ImportError: With what to run instead.
    """
    if (package / BUNDLED).is_file() and (package / RUNTIME).is_file():
        raise ImportError(
            f"`{package}` belongs to slimformer-runtime and to a slimformer that was installed from its sources, which "
            "has the runtime in it; run: pip uninstall slimformer slimformer-runtime, and install one of them"
        )


def explain_missing() -> None:
    """Say of every module that slimformer-runtime is without where it is."""
    if not any(isinstance(finder, _Missing) for finder in sys.meta_path):
        sys.meta_path.append(_Missing())


def needs_all(name: str) -> str:
    """What to say of a name that only all of slimformer has."""
    return (
        f"`{name}` is not in slimformer-runtime, which answers with finished models and is alone here; for all "
        "else run: pip install slimformer"
    )


class _Missing(MetaPathFinder):
    """Comes last and is asked for modules that nobody else has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # The kernels are missing where there was no compiler, which is said by those who ask for them.
        if fullname.startswith("slimformer.") and not fullname.startswith("slimformer.runtime."):
            raise ModuleNotFoundError(needs_all(fullname), name=fullname)
        return None
