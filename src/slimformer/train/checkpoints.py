"""Checkpoints of a run that survive a kill at any moment.

A checkpoint counts once it is sealed: a last file lists every other file with its size, written after all of
them have reached the disk. Whatever is not sealed, or does not match its seal, is treated as absent.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from slimformer.artifact.staging import sync
from slimformer.errors import TrainingError

if TYPE_CHECKING:
    from pathlib import Path

SEAL = "sealed.json"
PREFIX = "checkpoint-"


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete, after everything in it has reached the disk."""
    sizes = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file():
            sync(path)
            sizes[path.relative_to(checkpoint).as_posix()] = path.stat().st_size
    draft = checkpoint / f"{SEAL}.tmp"
    draft.write_text(json.dumps(sizes, indent=1))
    sync(draft)
    draft.rename(checkpoint / SEAL)
    sync(checkpoint)


def is_sealed(checkpoint: Path) -> bool:
    """Tell whether a checkpoint is complete."""
    try:
        sizes = json.loads((checkpoint / SEAL).read_text())
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    complete = [path for path in folder.glob(f"{PREFIX}*") if is_sealed(path)]
    return max(complete, key=step_of, default=None)


def prune(folder: Path, keep: Path | None) -> None:
    """Remove every checkpoint but one; what is being removed loses its seal first."""
    for path in folder.glob(f"{PREFIX}*"):
        if path != keep:
            (path / SEAL).unlink(missing_ok=True)
            shutil.rmtree(path)


def step_of(checkpoint: Path) -> int:
    """The optimizer step a checkpoint was taken after."""
    number = checkpoint.name.removeprefix(PREFIX)
    if not number.isdecimal():
        raise TrainingError(f"`{checkpoint}` is not a checkpoint of a run; remove it and resume again")
    return int(number)
