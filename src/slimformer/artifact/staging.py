"""Writing a folder or a file so that it is there completely or not at all.

It is made in a hidden folder beside its target, synced to disk and renamed. What a crash leaves behind is that hidden
folder, which the next save to the same target removes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.artifact.layout import MANIFEST
from slimformer.errors import ArtifactError, SlimformerError
from slimformer.files import as_path

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What a system says when a disk, a quota or a limit on files is full.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def staging(folder: str | Path, *, needed: int, overwrite: bool = False) -> Iterator[Path]:
    """Give a folder to fill, and move it to its target when the block ends without an error.

    Args:
        folder: the target; its parents are made.
        needed: bytes about to be written, checked against the free space beforehand.
        overwrite: whether an artifact that is there already may be replaced.
    """
    target = as_path(folder).resolve()
    _check_target(target, overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with hidden_folder(target) as stage:
            _check_space(target, needed)
            yield stage
            _sync(stage)
            _publish(stage, target, overwrite)
    except SlimformerError:
        raise
    except Exception as error:
        raise _explain(error, target, needed) from error


@contextmanager
def hidden_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder beside `target`, gone when the block ends, whatever happens in it.

    What killed processes left of such folders goes first.
    """
    _remove_leftovers(target, "tmp")
    stage = target.with_name(f".{target.name}.tmp-{secrets.token_hex(4)}")
    lock = None
    try:
        stage.mkdir()
        lock = _lock(stage)
        yield stage
    finally:
        # After an overwrite the former artifact lies here.
        shutil.rmtree(stage, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.name or (target.exists() and not target.is_dir()):
        raise ArtifactError(f"`{target}` is a file or has no name of its own; give a new folder")
    if not target.exists() or not any(target.iterdir()):
        return
    if not (target / MANIFEST).is_file():
        raise ArtifactError(
            f"folder `{target}` exists and is no artifact, so it is not replaced; give another folder or empty it"
        )
    if not overwrite:
        raise ArtifactError(f"artifact `{target}` exists; give another folder, or overwrite=True to replace it")


def _check_space(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise _no_space(target, needed, free, os.strerror(errno.ENOSPC))


def _no_space(target: Path, needed: int, free: int, reason: str) -> ArtifactError:
    return ArtifactError(
        f"no space to write `{target}` ({reason.lower()}): about {needed:,} bytes are needed, {free:,} are free; "
        "nothing was written, free some space or give a folder on another disk"
    )


def _explain(error: Exception, target: Path, needed: int) -> Exception:
    code = _system_code(error)
    if code is not None and code in FULL:
        return _no_space(target, needed, shutil.disk_usage(target.parent).free, os.strerror(code))
    if code is not None:
        return ArtifactError(
            f"cannot write `{target}`: {os.strerror(code).lower()}; nothing was written, give a folder that can be"
        )
    return error


def _system_code(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # safetensors reports what the system said as text.
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _sync(folder: Path) -> None:
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(root) / name)
        sync(Path(root))


def sync(path: Path) -> None:
    """Wait until a file or folder has reached the disk."""
    if path.is_dir() and sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _publish(stage: Path, target: Path, overwrite: bool) -> None:
    if not overwrite or not target.exists():
        stage.rename(target)
    elif not _exchange(stage, target):
        former = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
        target.rename(former)
        stage.rename(target)
    sync(target.parent)
    _remove_leftovers(target, "old")


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step, so that each name has a whole folder at every moment.

    Linux can; elsewhere the answer is False and nothing has happened.
    """
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0


def _lock(folder: Path) -> int | None:
    """Hold a lock on `folder` for as long as this process lives; None when another one holds it."""
    if sys.platform == "win32":
        return None
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove_leftovers(target: Path, kind: str) -> None:
    """Remove hidden folders of saves that were killed; a save that is running holds a lock on its own."""
    for path in target.parent.glob(f".{_escaped(target.name)}.{kind}-????????"):
        lock = _lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
