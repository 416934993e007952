"""SHA-256 of the files of an artifact: taken at saving, compared at loading."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from slimformer.artifact.layout import MANIFEST, list_files
from slimformer.artifact.manifest import FileSum
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def sum_file(path: Path) -> FileSum:
    """Measure one file."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return FileSum(sha256=digest, bytes=file.tell())
    except OSError as error:
        raise ArtifactError(f"cannot read `{path}`: {error.strerror}; check its permissions and the disk") from error


def sum_files(folder: Path) -> dict[str, FileSum]:
    """Measure every file of `folder` but the manifest itself."""
    return {name: sum_file(folder / name) for name in list_files(folder) if name != MANIFEST}


def check_files(
    folder: Path, expected: Mapping[str, FileSum], *, hashes: bool = True, trust_code: bool = False
) -> None:
    """Compare the files of `folder` with their sums: names first, then sizes, then hashes.

    With `hashes` off, the content is not read.
    """
    present = set(list_files(folder, trust_code=trust_code)) - {MANIFEST}
    for name in sorted(expected.keys() - present):
        raise ArtifactError(f"artifact `{folder}` lacks `{name}`; copy it again")
    for name in sorted(present - expected.keys()):
        raise ArtifactError(f"artifact `{folder}` holds `{name}`, which {MANIFEST} does not list; remove it")
    for name, wanted in expected.items():
        size = (folder / name).stat().st_size
        if size != wanted.bytes:
            what = "is cut short" if size < wanted.bytes else "has grown"
            raise ArtifactError(
                f"`{name}` of artifact `{folder}` {what}: {size:,} bytes instead of {wanted.bytes:,}; "
                "copy the artifact again"
            )
    if hashes:
        _check_hashes(folder, expected)


def _check_hashes(folder: Path, expected: Mapping[str, FileSum]) -> None:
    for name, wanted in expected.items():
        found = sum_file(folder / name).sha256
        if found != wanted.sha256:
            raise ArtifactError(
                f"`{name}` of artifact `{folder}` was changed: its SHA-256 is {found[:12]}… instead of "
                f"{wanted.sha256[:12]}…; copy the artifact again"
            )
