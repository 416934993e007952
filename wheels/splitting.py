"""The wheel of slimformer beside that of slimformer-runtime: what the latter has is taken out, and required instead."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: The file that tells of an installation with the runtime in it, see `slimformer.distribution`.
BUNDLED = "slimformer/BUNDLED"


def split(whole: Path, runtime: Path, out: Path) -> Path:
    """Write the wheel of slimformer without the runtime.

    Args:
        whole: A wheel of slimformer that was built without kernels, for any platform.
        runtime: A wheel of slimformer-runtime.
        out: The folder for the new wheel.

    Raises:
        ValueError: Where a file of the runtime is not, or not the same, in the whole.
    """
    name, version = runtime.name.split("-")[:2]
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(runtime) as other:
        theirs = _shared(source, other)
        kept = [each for each in source.infolist() if each.filename not in theirs]
        requirement = f"Requires-Dist: {name.replace('_', '-')}=={version}"
        target = out / whole.name
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
            _write(wheel, source, kept, requirement)
    return target


def _shared(whole: zipfile.ZipFile, runtime: zipfile.ZipFile) -> set[str]:
    """The files of the runtime, and the mark of what has it."""
    names, shared = set(whole.namelist()), {BUNDLED}
    for name in runtime.namelist():
        if ".dist-info/" in name or not name.endswith((".py", "py.typed")):
            continue
        if name not in names or whole.read(name) != runtime.read(name):
            raise ValueError(f"`{name}` of `{runtime.filename}` is not the one of `{whole.filename}`; build both anew")
        shared.add(name)
    return shared


def _write(wheel: zipfile.ZipFile, source: zipfile.ZipFile, kept: list[zipfile.ZipInfo], requirement: str) -> None:
    lines = []
    for each in kept:
        if each.filename.endswith(".dist-info/RECORD"):
            record = each
            continue
        content = source.read(each)
        if each.filename.endswith(".dist-info/METADATA"):
            content = _requiring(content.decode(), requirement).encode()
        wheel.writestr(each, content, zipfile.ZIP_DEFLATED)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{each.filename},sha256={digest},{len(content)}")
    wheel.writestr(record, "\n".join([*lines, f"{record.filename},,", ""]), zipfile.ZIP_DEFLATED)


def _requiring(metadata: str, requirement: str) -> str:
    """The metadata with a requirement before the others."""
    before, first, rest = metadata.partition("Requires-Dist: ")
    return f"{before}{requirement}\n{first}{rest}"
