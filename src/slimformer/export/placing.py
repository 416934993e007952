"""Writing a file so that it is there completely or not at all.

It is written into a hidden folder beside its target and renamed in the end. Above two gibibytes, which is what one
ONNX file can hold, the weights lie in a second file beside it, `NAME.data`.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.artifact.staging import hidden_folder, sync
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_place(out: str | Path, overwrite: bool) -> Path:
    """The file that is to be written, or an error if it is taken or cannot be; nothing is left there."""
    path = Path(out).expanduser()
    if path.is_dir() or path.name in ("", ".."):
        raise ArtifactError(f"`{out}` is a folder; give the name of a file, such as `{path / 'model.onnx'}`")
    for taken in (path, data_beside(path)):
        if taken.exists() and not overwrite:
            raise ArtifactError(f"`{taken}` exists; choose another `--out`, or add `--overwrite` to replace it")
    there = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        Path(tempfile.mkdtemp(prefix=f".{path.name}.tmp-", dir=there)).rmdir()
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def data_beside(path: Path) -> Path:
    """Where the weights of a large model lie."""
    return path.with_name(f"{path.name}.data")


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Give a place to write a file of the same name; move it to its target when the block ends without an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with hidden_folder(path) as folder:
            draft = folder / path.name
            yield draft
            _publish(draft, path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _publish(draft: Path, path: Path) -> None:
    data = data_beside(draft)
    for file in (draft, data):
        if file.exists():
            sync(file)
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
