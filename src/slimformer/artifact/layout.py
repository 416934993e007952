"""What may lie in an artifact folder, declared as data.

A way to store weights is one entry of `LAYOUTS`; the entries are tried in order and the first whose
file is there is taken.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slimformer.errors import ArtifactError

CARD = "README.md"
CONFIG = "config.json"
MANIFEST = "slimformer.json"
MASK = "mask.safetensors"
PROBE = "probe.json"

#: Kinds of file an artifact may hold. None of them can run code by being read.
DATA_SUFFIXES = frozenset({".jinja", ".json", ".md", ".safetensors", ".txt"})
#: Kinds of file that hold a Python pickle, which runs code when it is read.
PICKLE_SUFFIXES = frozenset({".bin", ".ckpt", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth"})
#: Kinds of file a model with its own code brings along; read only when the caller trusts it.
CODE_SUFFIXES = frozenset({".py"})
#: Files that would make Transformers load something else than the model in this folder.
DIVERTING_FILES = frozenset({"adapter_config.json"})


@dataclass(frozen=True)
class Layout:
    """One way weights lie in a folder, recognised by the file `weights`.

    With `indexed`, that file is an index that names the files with the tensors.
    """

    name: str
    weights: str
    indexed: bool = False

    def tensor_files(self, folder: Path) -> list[Path]:
        """List the safetensors files of `folder`, in the order of their names."""
        if not self.indexed:
            return [folder / self.weights]
        path = folder / self.weights
        try:
            names = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ArtifactError(f"`{path}` is not an index of weights: {error}; copy the folder again") from error
        for name in names:
            if not isinstance(name, str) or name != Path(name).name or not (folder / name).is_file():
                raise ArtifactError(f"`{path}` names the file `{name}`, which is not there; copy the folder again")
        return [folder / name for name in sorted(names)]


LAYOUTS = (
    Layout("plain", "model.safetensors"),
    Layout("sharded", "model.safetensors.index.json", indexed=True),
    Layout("mask", MASK),
)


def find_layout(folder: Path) -> Layout:
    """Return the first layout whose weights are in `folder`."""
    for layout in LAYOUTS:
        if (folder / layout.weights).is_file():
            return layout
    tried = " or ".join(f"`{layout.weights}`" for layout in LAYOUTS)
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickled:
        raise ArtifactError(
            f"folder `{folder}` keeps its weights as a pickle, `{pickled[0]}`, which is never read; "
            "convert it with `save_pretrained`, which writes safetensors"
        )
    raise ArtifactError(f"folder `{folder}` has no weights; it needs {tried}")


def list_files(folder: Path, *, trust_code: bool = False) -> list[str]:
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
                _refuse_kind(folder, relative, trust_code)
                found.append(relative)
            elif (here / name).is_symlink() or not any((here / name).iterdir()):
                raise _foreign(folder, relative)
    return sorted(found)


def is_safe_name(name: str) -> bool:
    """Tell whether `name` is a relative path that stays inside its folder."""
    path = PurePosixPath(name)
    parts_ok = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return parts_ok and str(path) == name and "\\" not in name and "\0" not in name and name != MANIFEST


def _refuse_kind(folder: Path, name: str, trust_code: bool) -> None:
    suffix = Path(name).suffix.lower()
    if suffix in PICKLE_SUFFIXES:
        raise ArtifactError(
            f"artifact `{folder}` holds `{name}`, which may be a pickle and run code; remove it, "
            "weights are read from safetensors only"
        )
    if suffix in CODE_SUFFIXES and not trust_code:
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
