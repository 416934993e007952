"""The sources of slimformer-runtime in a folder of their own, which sdist and wheels are built of."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "wheels" / "runtime"
#: The kernels; what CMake leaves beside them is none of it.
KERNELS = ("CMakeLists.txt", "*.cpp", "*.h", "*.inl")
#: The file that tells of slimformer-runtime, see `slimformer.distribution`.
MARK = "RUNTIME"


def project() -> dict[str, Any]:
    """What pyproject.toml says of slimformer-runtime."""
    return tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements() -> list[str]:
    """What it is built with."""
    return list(project()["build-system"]["requires"])


def sources() -> list[Path]:
    """The modules of slimformer-runtime, relative to `src/slimformer`.

    Raises:
        FileNotFoundError: Where pyproject.toml names what there is not.
    """
    package = ROOT / "src" / "slimformer"
    files: set[Path] = set()
    for pattern in project()["tool"]["slimformer-runtime"]["sources"]:
        matching = list(package.glob(pattern))
        if not matching:
            raise FileNotFoundError(
                f"`{pattern}` of {PROJECT / 'pyproject.toml'} names nothing in `{package}`; mend it"
            )
        files.update(path.relative_to(package) for path in matching)
    return sorted(files)


def stage(folder: Path) -> Path:
    """Copy the project, its modules and the kernels into a folder that is not there yet.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True)
    for file in (PROJECT / "pyproject.toml", PROJECT / "README.md", ROOT / "LICENSE"):
        shutil.copy(file, folder)
    kernels = folder / "csrc"
    kernels.mkdir()
    for pattern in KERNELS:
        for file in sorted((ROOT / "csrc").glob(pattern)):
            shutil.copy(file, kernels)
    for name in sources():
        target = folder / "src" / "slimformer" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "src" / "slimformer" / name, target)
    (folder / "src" / "slimformer" / MARK).write_text(
        "The files of slimformer-runtime. See slimformer/distribution.py.\n", encoding="utf-8"
    )
    return folder
