"""Where an artifact comes from: its base, the chain of steps, the versions that ran."""

from __future__ import annotations

import platform
import shlex
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.artifact.layout import MANIFEST
from slimformer.artifact.manifest import Base, Manifest, Step, read_manifest
from slimformer.artifact.storage.handler import weight_files
from slimformer.artifact.weights import fingerprint
from slimformer.errors import ArtifactError
from slimformer.models import ALIASES, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Libraries whose version decides what a run computes.
LIBRARIES = ("slimformer", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def chain(
    step: Step,
    base: Base | str | Path | None,
    base_manifest: Manifest | None,
    command: str | Sequence[str] | None,
) -> list[Step]:
    """Append `step` to the steps of its base, completed with what can be found out here."""
    if base is None and base_manifest is not None:
        raise ArtifactError("`base_manifest` was given without `base`; give the name or folder of the base too")
    if base_manifest is None:
        base_manifest = _manifest_of(base)
    known = step.base if base is None else describe_base(base)
    if base_manifest is not None and known is not None:
        known = _same_base(known, base_manifest)
    if command is not None and not isinstance(command, str):
        command = shlex.join(command)
    done = step.model_copy(
        update={
            "base": known,
            "command": step.command if command is None else command,
            "versions": step.versions or versions(),
        }
    )
    return [*(base_manifest.steps if base_manifest is not None else ()), done]


def describe_base(base: Base | str | Path) -> Base:
    """Name a base and take the fingerprint of its weights, when they are on this machine.

    A folder is named by its last part only: the rest of a path says nothing to others.
    """
    if isinstance(base, Base):
        return base
    source = resolve(base)
    folder = Path(source)
    if folder.is_dir():
        name = str(base) if str(base) in ALIASES else folder.resolve().name
        return Base(name=name, fingerprint=fingerprint(folder))
    cached = cached_folder(source)
    return Base(name=source, fingerprint=None if cached is None else fingerprint(cached))


def versions() -> dict[str, str]:
    """Collect the versions of Python and the libraries that are installed."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _manifest_of(base: Base | str | Path | None) -> Manifest | None:
    if base is None or isinstance(base, Base):
        return None
    folder = Path(resolve(base))
    return read_manifest(folder) if (folder / MANIFEST).is_file() else None


def _same_base(base: Base, manifest: Manifest) -> Base:
    recorded = manifest.model.fingerprint
    if base.fingerprint not in (None, recorded):
        raise ArtifactError(
            f"base `{base.name}` has the fingerprint {str(base.fingerprint)[:12]}… and its manifest says "
            f"{recorded[:12]}…; give the manifest of that base, or check it with `slimformer verify`"
        )
    return base.model_copy(update={"fingerprint": recorded})


def cached_folder(name: str) -> Path | None:
    """The folder of the cache of the Hub that holds a model's weights, if there is one."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for file in weight_files():
        try:
            found = try_to_load_from_cache(name, file)
        except HFValidationError:
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None
