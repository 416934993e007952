"""What slimformer made and may therefore remove or replace: folders it has marked, and artifacts as they were saved.

A folder of the same name, a link, a file that somebody put beside ours: whatever cannot be shown to be ours stays.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from slimformer.artifact.checks import sum_file
from slimformer.artifact.layout import MANIFEST, list_files, list_kept
from slimformer.artifact.manifest import read_manifest
from slimformer.errors import ArtifactError
from slimformer.files import read_limited

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from slimformer.artifact.manifest import FileSum

#: The file by which a folder says that it may be removed; it is the first one made there and the last one removed.
MARK = ".slimformer"
#: What a disk says that keeps no locks, such as some network file systems.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
TEXT = "slimformer made this folder for a while and removes it when its work is done.\n"


def mark(folder: Path) -> None:
    """Mark a folder that was empty; the mark is there already where an earlier process has begun."""
    if not (folder / MARK).exists():
        (folder / MARK).write_text(TEXT, encoding="utf-8")


def is_own(folder: Path) -> bool:
    """Tell whether a folder is marked, or empty, as a process leaves it that is killed before it has marked it."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    marked = folder / MARK
    if not marked.is_file() or marked.is_symlink():
        return not any(folder.iterdir())
    try:
        # A process that is killed while it writes the mark leaves the beginning of it.
        return TEXT.encode().startswith(read_limited(marked, len(TEXT)))
    except OSError:
        return False


def remove_own(folder: Path) -> None:
    """Remove a marked folder with everything in it; leave any other."""
    if not is_own(folder):
        return
    for path in folder.iterdir():
        if path.name != MARK:
            remove(path)
    remove_mark(folder)


def remove_mark(folder: Path) -> None:
    """Take the mark off a folder, and remove it if it is empty then."""
    (folder / MARK).unlink(missing_ok=True)
    with suppress(OSError):  # something of the user's is left in it
        folder.rmdir()


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, never what a link leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def lock(folder: Path) -> int | None:
    """Hold a lock on a folder for as long as this process lives; None where the system or the disk keeps none.

    The caller closes the handle to let go. The system does it however a process ends. A lock that another process
    holds is a `BlockingIOError`.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno not in NO_LOCKS:
            raise
        return None
    return handle


def lies_at(handle: int, folder: Path) -> bool:
    """Whether the folder of a handle is still the one that has its name, and not removed or made anew."""
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


def check_outside(path: Path, *, itself: bool = False) -> None:
    """Refuse a place inside an artifact, which would not be whole with anything else in it.

    Args:
        path: The place.
        itself: Whether the place is a folder that is filled, and must be no artifact either.
    """
    real = path.resolve()
    places = (real, *real.parents) if itself else real.parents
    around = next((place for place in places if (place / MANIFEST).is_file()), None)
    if around is not None:
        raise ArtifactError(f"`{path}` lies in the artifact `{around}`, which has to stay whole; choose another place")


def _sum(path: Path) -> FileSum:
    """The sum of a file, which is read once however often it is asked for until it changes."""
    try:
        seen = path.stat()
    except OSError:
        return sum_file(path)  # which says why it cannot
    return _sum_of(path, (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns))


@lru_cache(maxsize=1024)
def _sum_of(path: Path, _: tuple[int, ...]) -> FileSum:
    return sum_file(path)


def _foreign(folder: Path, name: str, saved: Mapping[str, FileSum]) -> str | None:
    """Why a file of an artifact is not the one that was saved; None if it is."""
    if (folder / name).is_symlink():
        return "is a link, which no artifact is saved with"
    if name == MANIFEST:
        return None  # its own sum was compared when it was read
    if name not in saved:
        return "is none of its files"
    return None if _sum(folder / name) == saved[name] else "was changed"


def check_replaceable(folder: Path) -> None:
    """Refuse to replace a folder unless it is an artifact and holds nothing but what was saved there, unchanged.

    Files that systems leave everywhere and make again may go with it, and what the Hub notes of a download; whatever
    else lies among them, such as a git history, may not.
    What is missing of it is no obstacle: nothing can be lost that is not there.
    """
    try:
        saved = read_manifest(folder).files
        for name in list_kept(folder):
            raise ArtifactError(f"`{name}` is none of its files; move it away")
        for name in list_files(folder):
            what = _foreign(folder, name, saved)
            if what is not None:
                raise ArtifactError(f"`{name}` {what}; move it away")
    except ArtifactError as error:
        raise ArtifactError(
            f"`{folder}` is not replaced, as not all of it is known to be slimformer's: {error.reason}; move it away, "
            "or choose another folder"
        ) from error
