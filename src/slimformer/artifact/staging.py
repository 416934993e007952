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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.artifact.layout import MANIFEST
from slimformer.artifact.ownership import check_outside, check_replaceable, lies_at, lock, mark, remove_own
from slimformer.errors import ArtifactError, PathError, SlimformerError
from slimformer.files import HALF, as_path

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
    target = check_target(as_path(folder), overwrite).resolve()
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
    remove_leftovers(target)
    place, handle = _hide(target)
    try:
        mark(place)
        stage = place / "stage"
        stage.mkdir()
        yield stage
    finally:
        # After an overwrite the former artifact lies here.
        remove_own(place)
        if handle is not None:
            os.close(handle)


def _hide(target: Path) -> tuple[Path, int | None]:
    """Make a hidden folder and hold it; until it is held, another process may take it for a leftover."""
    while True:
        place = target.with_name(_hidden_name(target))
        place.mkdir()
        try:
            handle = lock(place)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError:
            place.rmdir()
            raise
        if handle is None or lies_at(handle, place):
            return place, handle
        os.close(handle)


def remove_leftovers(target: Path) -> None:
    """Remove the hidden folders of killed processes beside `target`; one that is at work holds a lock on its own.

    Where no locks are kept, nobody can tell which ones these are, and all of them stay.
    """
    for path in _leftovers(target, "tmp"):
        with suppress(OSError):  # it is held, gone or somebody else's
            handle = lock(path)
            if handle is not None:
                try:
                    remove_own(path)
                finally:
                    os.close(handle)


def try_place(target: Path) -> None:
    """Make a hidden folder where the one beside `target` will be, and remove it again; an `OSError` if that fails."""
    there = next(parent for parent in target.absolute().parents if os.path.lexists(parent))
    if not there.exists():
        raise FileNotFoundError(errno.ENOENT, "a link in it leads nowhere")
    trial = there / _hidden_name(target)
    trial.mkdir()
    with suppress(FileNotFoundError):  # another process has taken it for a leftover
        trial.rmdir()


def _hidden_name(target: Path) -> str:
    return f".{target.name}.tmp-{secrets.token_hex(4)}"


def check_target(target: Path, overwrite: bool) -> Path:
    """Refuse a place for an artifact that is taken, unless what is there is an artifact that may be replaced."""
    if not target.resolve().name:
        raise ArtifactError(f"`{target}` has no name of its own; choose another `--out`")
    check_outside(target)
    if target.is_symlink() and not target.exists():  # what its owner means to be there, nobody can tell
        raise ArtifactError(f"`{target}` is a link that leads nowhere; remove it, or choose another `--out`")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return target
    if not (target / MANIFEST).is_file():
        raise ArtifactError(f"`{target}` exists and is no artifact, so it is not replaced; choose another `--out`")
    if not overwrite:
        raise ArtifactError(
            f"`{target}` exists; choose another `--out`, or add `--overwrite` (`overwrite=True`) to replace it"
        )
    check_replaceable(target)
    return target


def check_place(folder: str | Path, overwrite: bool) -> None:
    """Refuse, before any work, a place for an artifact that is taken or cannot be written; nothing is left there."""
    target = as_path(folder)
    if HALF.search(str(target)):
        raise PathError(f"`{folder}` is not UTF-8, which tokenizers cannot write; choose another `--out`")
    check_target(target, overwrite)
    try:
        try_place(target.resolve() if target.is_symlink() else target)
    except OSError as error:
        raise _explain(error, target, 0) from error


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
    code = system_code(error)
    if code is not None and code in FULL:
        return _no_space(target, needed, shutil.disk_usage(target.parent).free, os.strerror(code))
    if code is not None:
        reason = (error.strerror if isinstance(error, OSError) else None) or os.strerror(code)
        return ArtifactError(
            f"cannot write `{target}`: {reason.lower()}; nothing was written, give a folder that can be"
        )
    return error


def system_code(error: Exception) -> int | None:
    """The number of what the system said when something could not be written; None for other errors."""
    if isinstance(error, OSError):
        return error.errno
    # safetensors reports what the system said as text.
    number = re.search(r"\(os error (\d+)\)", str(error))
    return int(number[1]) if number else None


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


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and wait until it has reached the disk."""
    draft = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:  # never somebody's file of this name, nor where a link leads
            file.write(content)
        sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def _publish(stage: Path, target: Path, overwrite: bool) -> None:
    if not overwrite or not target.exists():
        stage.rename(target)
        sync(target.parent)
        return
    check_target(target, overwrite)  # much may have been put there since
    if not _exchange(stage, target):
        former = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
        target.rename(former)
        stage.rename(target)
    sync(target.parent)
    for path in _leftovers(target, "old"):
        with suppress(ArtifactError):
            check_replaceable(path)
            shutil.rmtree(path, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step, so that each name has a whole folder at every moment.

    Linux can; elsewhere the answer is False and nothing has happened.
    """
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0


def _leftovers(target: Path, kind: str) -> list[Path]:
    """Hidden folders of saves that were killed; a link of such a name is none."""
    names = target.parent.glob(f".{_escaped(target.name)}.{kind}-{'[0-9a-f]' * 8}")
    return [path for path in names if path.is_dir() and not path.is_symlink()]


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def open_to_readers(stage: Path) -> None:
    """Give all files the permissions new files have here; safetensors makes its own for the owner alone."""
    umask = os.umask(0)
    os.umask(umask)
    for path in stage.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~umask)
