"""What may lie in an artifact folder, declared as data; how weights lie in it is a matter of `artifact.storage`."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from slimformer.errors import ArtifactError
from slimformer.models.trust import trusted
from slimformer.models.weights import PICKLE_SUFFIXES

CARD = "README.md"
CONFIG = "config.json"
GENERATION = "generation_config.json"
MANIFEST = "slimformer.json"
MASK = "mask.safetensors"
#: Not `model.safetensors`, which Transformers without slimformer would take for plain weights and leave them random.
PACKED = "packed.safetensors"
PROBE = "probe.json"
READING = "reading.json"

#: Kinds of file an artifact may hold. None of them can run code by being read.
DATA_SUFFIXES = frozenset({".jinja", ".json", ".md", ".safetensors", ".txt"})
#: Kinds of file a model with its own code brings along; read only when the caller trusts it.
CODE_SUFFIXES = frozenset({".py"})
#: Files that would make Transformers load something else than the model in this folder.
DIVERTING_FILES = frozenset({"adapter_config.json"})


def list_files(folder: Path) -> list[str]:
    """List every file under `folder` by its relative path; refuse kinds an artifact cannot hold.

    A link to a file counts as that file, as in the cache of the Hub. Links to folders, empty folders,
    pipes and devices are refused, so that nothing in the folder goes unchecked.
    """
    found = []
    for root, folders, files in os.walk(folder, onerror=_unreadable):
        here = Path(root)
        for name in [*folders, *files]:
            relative = (here / name).relative_to(folder).as_posix()
            if name in files:
                _refuse_kind(folder, relative)
                found.append(relative)
            elif (here / name).is_symlink() or not any((here / name).iterdir()):
                raise _foreign(folder, relative)
    return sorted(found)


def is_safe_name(name: str) -> bool:
    """Tell whether `name` is a relative path that stays inside its folder."""
    path = PurePosixPath(name)
    parts_ok = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return parts_ok and str(path) == name and "\\" not in name and "\0" not in name and name != MANIFEST


def _refuse_kind(folder: Path, name: str) -> None:
    suffix = Path(name).suffix.lower()
    if suffix in PICKLE_SUFFIXES:
        raise ArtifactError(
            f"artifact `{folder}` holds `{name}`, which may be a pickle and run code; remove it, "
            "weights are read from safetensors only"
        )
    if suffix in CODE_SUFFIXES and not trusted():
        raise ArtifactError(
            f"artifact `{folder}` holds code, `{name}`; read it, and load with trust_remote_code=True if you trust it"
        )
    allowed = DATA_SUFFIXES | CODE_SUFFIXES
    if suffix not in allowed or Path(name).name in DIVERTING_FILES or not (folder / name).is_file():
        raise _foreign(folder, name)


def _unreadable(error: OSError) -> None:
    raise ArtifactError(f"cannot list `{error.filename}`: {error.strerror}; check its permissions") from error


def _foreign(folder: Path, name: str) -> ArtifactError:
    return ArtifactError(f"artifact `{folder}` holds `{name}`, which does not belong there; remove it")
