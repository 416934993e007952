"""Where an ONNX export goes: a file with a second one for large weights, or a folder."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.artifact import staging
from slimformer.artifact.storage.onnx import MODEL, data_beside
from slimformer.errors import ArtifactError
from slimformer.files import as_path
from slimformer.integrations.placing import START, Beside, FileKind, check_place, staged

if TYPE_CHECKING:
    from collections.abc import Iterator


def _begins(start: bytes) -> bool:
    """Whether a file begins as ONNX does: with the version of its format, then the name of what wrote it."""
    return len(start) == START and start[0] == 0x08 and start[1] < 0x80 and start[2] == 0x12


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


ONNX = FileKind("ONNX file", ".onnx", _begins, Beside(data_beside, _has_data))


def check_out(out: str | Path, overwrite: bool, source: object) -> Path:
    """The file or folder that is to be written, or an error if it is taken or cannot be; nothing is left there.

    Args:
        out: As the user gave it.
        overwrite: Whether an earlier result there may be replaced.
        source: What is exported, by name; a folder is never replaced by what is made of it.
    """
    path = as_path(out)
    if ONNX.names(path):
        return check_place(out, overwrite, ONNX)
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
    if ONNX.names(path):
        with staged(path, ONNX, overwrite=overwrite) as draft:
            yield draft
    else:
        with staging.staging(path, needed=needed, overwrite=overwrite) as stage:
            yield stage / MODEL
