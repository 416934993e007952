"""`slimformer.json` as a file: its one serialisation, its sum over itself, and what answering needs to know of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.artifact.layout import MANIFEST, MASK, is_safe_name
from slimformer.errors import ArtifactError
from slimformer.files import JsonError, as_path, parse_json

if TYPE_CHECKING:
    from pathlib import Path

#: Version of the format written, and the newest one read.
FORMAT = 2
#: A manifest is a few kilobytes; a file beyond this is not one.
MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class FileRecord:
    """What is recorded of a file."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Outline:
    """What answering needs of a manifest.

    Args:
        storage: How the weights lie in the folder.
        files: Every other file of the folder.
        settings: Those of the task; none where there is no task.
    """

    storage: str
    files: dict[str, FileRecord]
    settings: dict[str, Any]


def read_outline(folder: str | Path) -> Outline:
    """Read `slimformer.json` of an artifact and check its sum; the other files are not looked at."""
    path, data = read_bytes(folder)
    source = str(path)
    raw = parse(data, source)
    check_format(raw.get("format"), source)
    recorded = raw.pop("sha256", None)
    if recorded != sum_of(raw) or data != canonical({**raw, "sha256": recorded}):
        raise changed(source, recorded)
    content = _mapping(with_storage(raw))
    files = {str(name): _record(name, each, source) for name, each in _mapping(content.get("files")).items()}
    storage = _mapping(content.get("model")).get("storage", "plain")
    if not files or not isinstance(storage, str):
        raise ArtifactError(f"`{source}` has a wrong `{'model' if files else 'files'}`; save the artifact again")
    return Outline(storage, files, _mapping(_mapping(content.get("task")).get("settings")))


def _record(name: str, recorded: Any, source: str) -> FileRecord:
    digest, size = (_mapping(recorded).get(key) for key in ("sha256", "bytes"))
    if not is_safe_name(name) or not isinstance(digest, str) or type(size) is not int:
        raise ArtifactError(f"`{source}` has a wrong `files.{name}`; save the artifact again")
    return FileRecord(digest, size)


def changed(source: str, recorded: Any) -> ArtifactError:
    """What to raise where the sum of a manifest is not the one it has."""
    return ArtifactError(
        f"`{source}` was changed after it was written (its own sum is {recorded!r}); "
        "copy the artifact again from where it was made"
    )


def read_bytes(folder: str | Path) -> tuple[Path, bytes]:
    """The manifest of a folder as it lies there."""
    path = as_path(folder) / MANIFEST
    if not path.parent.is_dir():
        raise ArtifactError(f"no folder at `{folder}`; give the folder of an artifact{_interrupted(path.parent)}")
    if not path.is_file():
        raise ArtifactError(
            f"folder `{folder}` has no {MANIFEST}, so it is no artifact; give a folder that slimformer wrote, "
            "or load a plain checkpoint with transformers"
        )
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ArtifactError(f"`{path}` has {size:,} bytes, more than any manifest; copy the artifact again")
    return path, path.read_bytes()


def _interrupted(folder: Path) -> str:
    kept = sorted(folder.absolute().parent.glob(f".{folder.name}.old-*"))
    return f"; an interrupted overwrite left the former one at `{kept[0]}`, rename it back" if kept else ""


def with_storage(content: Any) -> Any:
    """The same with how weights are stored, which format 1 left to the files."""
    if not isinstance(content, dict) or content.get("format") != 1 or not isinstance(content.get("model"), dict):
        return content
    storage = "mask" if MASK in _mapping(content.get("files")) else "packed" if content["model"].get("packed") else None
    return content if storage is None else {**content, "model": {**content["model"], "storage": storage}}


def _mapping(content: Any) -> dict[str, Any]:
    """An object of the file; of anything else, which validation refuses, an empty one."""
    return content if isinstance(content, dict) else {}


def canonical(content: dict[str, Any]) -> bytes:
    """The one form that is valid on disk."""
    try:
        text = json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()
    except ValueError as error:
        raise ArtifactError(
            f"{MANIFEST} cannot hold a value of the manifest: {error}; give finite numbers and text"
        ) from error


def sum_of(content: dict[str, Any]) -> str:
    """The sum of a manifest over all but itself."""
    return hashlib.sha256(canonical(content)).hexdigest()


def parse(data: bytes, source: str) -> dict[str, Any]:
    """The content of a manifest, of which nothing is checked yet."""
    try:
        raw = parse_json(data)
    except JsonError as error:
        raise ArtifactError(f"`{source}` is not valid JSON: {error}; copy the artifact again") from error
    if not isinstance(raw, dict):
        raise ArtifactError(f"`{source}` holds a {type(raw).__name__}, not an object; copy the artifact again")
    return raw


def check_format(number: object, source: str) -> None:
    """Refuse what is no version of the format, or a newer one."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ArtifactError(f"`{source}` has the format {number!r}, which is no version; copy the artifact again")
    if number > FORMAT:
        raise ArtifactError(
            f"`{source}` is of format {number}, and this slimformer reads up to format {FORMAT}; update slimformer"
        )
