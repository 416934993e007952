"""The files of an artifact beside their sums."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from slimformer.artifact.layout import MANIFEST, list_files
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Sum(Protocol):
    """What is recorded of a file."""

    @property
    def sha256(self) -> str:
        """Of its content, in hexadecimal digits."""

    @property
    def bytes(self) -> int:
        """How long it is."""


def measure(path: Path) -> tuple[str, int]:
    """The SHA-256 of a file and its bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise ArtifactError(f"cannot read `{path}`: {error.strerror}; check its permissions and the disk") from error


def check_files(folder: Path, expected: Mapping[str, Sum]) -> None:
    """Compare the files of `folder` with their sums: names first, then sizes, then hashes."""
    present = set(list_files(folder)) - {MANIFEST}
    for name in sorted(expected.keys() - present):
        raise ArtifactError(f"artifact `{folder}` lacks `{name}`; copy it again")
    for name in sorted(present - expected.keys()):
        raise ArtifactError(f"artifact `{folder}` holds `{name}`, which {MANIFEST} does not list; remove it")
    for name, recorded in expected.items():
        size = (folder / name).stat().st_size
        if size != recorded.bytes:
            what = "is cut short" if size < recorded.bytes else "has grown"
            raise ArtifactError(
                f"`{name}` of artifact `{folder}` {what}: {size:,} bytes instead of {recorded.bytes:,}; "
                "copy the artifact again"
            )
    _check_hashes(folder, expected)


def _check_hashes(folder: Path, expected: Mapping[str, Sum]) -> None:
    for name, recorded in expected.items():
        digest, _ = measure(folder / name)
        if digest != recorded.sha256:
            raise ArtifactError(
                f"`{name}` of artifact `{folder}` was changed: its SHA-256 is {digest[:12]}… instead of "
                f"{recorded.sha256[:12]}…; copy the artifact again"
            )
