"""Where an exported file goes: it is there whole or not at all, and replaces nothing that nobody asked it to."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.artifact import staging
from slimformer.artifact.ownership import check_outside
from slimformer.artifact.staging import hidden_folder, sync, try_place
from slimformer.artifact.storage.onnx import MODEL, data_beside
from slimformer.errors import ArtifactError
from slimformer.files import as_path

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How the name of an ONNX file ends.
SUFFIX = ".onnx"


def is_file_name(path: Path) -> bool:
    """Whether a result is one file, by its name; any other is a folder."""
    return path.suffix.lower() == SUFFIX


def check_out(out: str | Path, overwrite: bool, source: object) -> Path:
    """The file or folder that is to be written, or an error if it is taken or cannot be; nothing is left there.

    Args:
        out: As the user gave it.
        overwrite: Whether an earlier result there may be replaced.
        source: What is exported, by name; a folder is never replaced by what is made of it.
    """
    path = as_path(out)
    if is_file_name(path):
        return check_place(out, overwrite)
    if isinstance(source, str | Path) and path.exists() and path.resolve() == as_path(source).resolve():
        raise ArtifactError(f"`--out` is `{out}`, the model itself, which would be lost; give another folder")
    staging.check_place(path, overwrite)
    return path


@contextmanager
def drafted(path: Path, *, needed: int, overwrite: bool) -> Iterator[Path]:
    """Give a place to write an ONNX file, which is moved to its target when the block ends without an error.

    Args:
        path: The target: a file, or a folder with whatever is put beside the file.
        needed: Bytes about to be written.
        overwrite: Whether an earlier result there may be replaced.
    """
    if is_file_name(path):
        with staged(path, overwrite=overwrite) as draft:
            yield draft
    else:
        with staging.staging(path, needed=needed, overwrite=overwrite) as stage:
            yield stage / MODEL


def check_place(out: str | Path, overwrite: bool) -> Path:
    """The file that is to be written, or an error if it is taken or cannot be; nothing is left there."""
    path = as_path(out)
    if path.is_dir() or path.name in ("", ".."):
        raise ArtifactError(f"`{out}` is a folder; give the name of a file, such as `{path / 'model.onnx'}`")
    check_outside(path)
    for taken in (path, data_beside(path)):
        if os.path.lexists(taken) and not overwrite:  # a link to nothing too: it is somebody's
            raise ArtifactError(f"`{taken}` exists; choose another `--out`, or add `--overwrite` to replace it")
    if path.is_symlink() and path.exists():
        raise ArtifactError(f"`{path}` is a link; give the file it leads to, or choose another `--out`")
    if any(map(os.path.lexists, (path, data_beside(path)))) and not _is_onnx(path):
        raise ArtifactError(f"`{path}` is no ONNX file, so nothing is replaced; choose another `--out`")
    if os.path.lexists(data_beside(path)) and not _has_data(path):
        raise ArtifactError(
            f"`{data_beside(path)}` holds nothing of `{path.name}`, so it is not replaced; move it away, or choose "
            "another `--out`"
        )
    try:
        try_place(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _is_onnx(path: Path) -> bool:
    """Whether a file begins as ONNX does: with the version of its format, then the name of what wrote it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(3)
    return len(start) == 3 and start[0] == 0x08 and start[1] < 0x80 and start[2] == 0x12


def _has_data(path: Path) -> bool:
    """Whether weights of an ONNX file lie in the file beside it."""
    import onnx

    data = data_beside(path)
    if data.is_symlink() or not data.is_file():
        return False
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception:  # what protobuf raises for a file of another sort has no common name
        return False
    places = (entry.value for tensor in graph.initializer for entry in tensor.external_data if entry.key == "location")
    return data.name in places


@contextmanager
def staged(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a place to write a file of the same name; move it to its target when the block ends without an error.

    Args:
        path: The target.
        overwrite: Whether an ONNX file that is there then may be replaced.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with hidden_folder(path) as folder:
            draft = folder / path.name
            yield draft
            for file in folder.iterdir():
                sync(file)
            check_place(path, overwrite)  # much may have been put there since
            if overwrite:
                _replace(draft, path)
            else:
                _publish(draft, path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _publish(draft: Path, path: Path) -> None:
    """Give a new file its name; of two exports to one place at once, the second finds it taken, by the system's word.

    A name that is linked is never a replaced one. A disk without links has the check before, and no more.
    """
    data = data_beside(draft)
    moved = [(data, data_beside(path))] if data.exists() else []
    try:
        for source, target in [*moved, (draft, path)]:
            os.link(source, target)
    except FileExistsError as error:
        for _, target in moved if Path(str(error.filename2)) == path else ():
            target.unlink()
        raise ArtifactError(
            f"`{error.filename2}` was written by somebody else meanwhile, so it stays; choose another `--out`"
        ) from error
    except OSError:
        _replace(draft, path)


def _replace(draft: Path, path: Path) -> None:
    data = data_beside(draft)
    if data.exists():
        # Never a model beside the data of another one.
        path.unlink(missing_ok=True)
        data.replace(data_beside(path))
        draft.replace(path)
    else:
        draft.replace(path)
        data_beside(path).unlink(missing_ok=True)


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
