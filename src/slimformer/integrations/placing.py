"""Where one exported file goes: it is there whole or not at all, and replaces nothing that nobody asked it to."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.artifact.ownership import check_outside
from slimformer.artifact.staging import hidden_folder, sync, try_place
from slimformer.errors import ArtifactError
from slimformer.files import as_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Bytes at the start of a file that tell what it is.
START = 4


@dataclass(frozen=True)
class Beside:
    """A second file of an export, for what is too large for one.

    Args:
        path: Where it lies, by the path of the first.
        belongs: Whether what lies there is a part of the first, by the path of the first.
    """

    path: Callable[[Path], Path]
    belongs: Callable[[Path], bool]


@dataclass(frozen=True)
class FileKind:
    """A sort of file that models are exported to.

    Args:
        name: What messages call it.
        suffix: How the names of such files end.
        begins: Whether a file of this sort starts with these bytes.
        beside: A second file, where there may be one.
    """

    name: str
    suffix: str
    begins: Callable[[bytes], bool]
    beside: Beside | None = None

    def names(self, path: Path) -> bool:
        """Whether a path is that of such a file, by its name."""
        return path.suffix.lower() == self.suffix

    def places(self, path: Path) -> tuple[Path, ...]:
        """Where its files lie: the one, and a second where there may be one."""
        return (path,) if self.beside is None else (path, self.beside.path(path))


def check_place(out: str | Path, overwrite: bool, kind: FileKind) -> Path:
    """The file that is to be written, or an error if it is taken or cannot be; nothing is left there.

    Args:
        out: As the user gave it.
        overwrite: Whether an earlier result there may be replaced.
        kind: What is to be written.
    """
    path = as_path(out)
    if path.is_dir() or path.name in ("", ".."):
        raise ArtifactError(f"`{out}` is a folder; give the name of a file, such as `{path / f'model{kind.suffix}'}`")
    check_outside(path)
    for taken in kind.places(path):
        if os.path.lexists(taken) and not overwrite:  # a link to nothing too: it is somebody's
            raise ArtifactError(f"`{taken}` exists; choose another `--out`, or add `--overwrite` to replace it")
    if path.is_symlink() and path.exists():
        raise ArtifactError(f"`{path}` is a link; give the file it leads to, or choose another `--out`")
    if any(map(os.path.lexists, kind.places(path))) and not _is_of(path, kind):
        raise ArtifactError(f"`{path}` is no {kind.name}, so nothing is replaced; choose another `--out`")
    if kind.beside is not None and os.path.lexists(kind.beside.path(path)) and not kind.beside.belongs(path):
        raise ArtifactError(
            f"`{kind.beside.path(path)}` holds nothing of `{path.name}`, so it is not replaced; move it away, or "
            "choose another `--out`"
        )
    try:
        try_place(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _is_of(path: Path, kind: FileKind) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return kind.begins(file.read(START))


@contextmanager
def staged(path: Path, kind: FileKind, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a place to write a file of the same name; move it to its target when the block ends without an error.

    Args:
        path: The target.
        kind: What is written.
        overwrite: Whether a file of that kind that is there then may be replaced.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with hidden_folder(path) as folder:
            draft = folder / path.name
            yield draft
            for file in folder.iterdir():
                sync(file)
            check_place(path, overwrite, kind)  # much may have been put there since
            if overwrite:
                _replace(draft, path, kind)
            else:
                publish(draft, path, kind)
    except OSError as error:
        raise _unwritable(path, error) from error


def publish(draft: Path, path: Path, kind: FileKind) -> None:
    """Give a new file its name; of two exports to one place at once, the second finds it taken, by the system's word.

    A name that is linked is never a replaced one. A disk without links has the check before, and no more.
    """
    (main, *more) = zip(kind.places(draft), kind.places(path), strict=True)
    moved = [(source, target) for source, target in more if source.exists()]
    try:
        for source, target in [*moved, main]:
            os.link(source, target)
    except FileExistsError as error:
        for _, target in moved if Path(str(error.filename2)) == path else ():
            target.unlink()
        raise ArtifactError(
            f"`{error.filename2}` was written by somebody else meanwhile, so it stays; choose another `--out`"
        ) from error
    except OSError:
        _replace(draft, path, kind)


def _replace(draft: Path, path: Path, kind: FileKind) -> None:
    (_, *more) = zip(kind.places(draft), kind.places(path), strict=True)
    for source, target in more:
        if source.exists():
            # Never a model beside the data of another one.
            path.unlink(missing_ok=True)
            source.replace(target)
            draft.replace(path)
            return
    draft.replace(path)
    for _, target in more:
        target.unlink(missing_ok=True)


def check_space(path: Path, needed: int) -> None:
    """Refuse where the disk has no room for so many bytes."""
    there = next(parent for parent in path.absolute().parents if parent.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ArtifactError(
            f"no space to write `{path}`: about {needed:,} bytes are needed, {free:,} are free; nothing was written, "
            "free some space or give a file on another disk"
        )


def _unwritable(path: Path, error: OSError) -> ArtifactError:
    reason = (error.strerror or str(error)).lower()
    return ArtifactError(f"`{path}` cannot be written: {reason}; nothing was written, give another place")
