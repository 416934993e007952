"""What may lie in an artifact folder, declared as data; how weights lie in it is a matter of `artifact.storage`."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from slimformer.errors import ArtifactError
from slimformer.models.trust import trusted
from slimformer.models.weights import PICKLE_SUFFIXES

CARD = "README.md"
CONFIG = "config.json"
MANIFEST = "slimformer.json"
MASK = "mask.safetensors"
#: Not `model.safetensors`, which Transformers without slimformer would take for plain weights and leave them random.
PACKED = "packed.safetensors"
#: The same for weights of blocks whose widths the config of Transformers cannot give.
PER_BLOCK = "per_block.safetensors"
PROBE = "probe.json"
READING = "reading.json"

#: Kinds of file with weights, and all kinds an artifact may hold. None of them can run code by being read.
WEIGHT_SUFFIXES = frozenset({".data", ".onnx", ".safetensors"})
DATA_SUFFIXES = WEIGHT_SUFFIXES | {".jinja", ".json", ".md", ".txt"}
#: Kinds of file a model with its own code brings along; read only when the caller trusts it.
CODE_SUFFIXES = frozenset({".py"})
#: Files that would make Transformers load something else than the model in this folder.
DIVERTING_FILES = frozenset({"adapter_config.json"})
#: What systems and version control leave in folders.
LITTER = frozenset({".DS_Store", ".directory", ".gitattributes", ".gitignore", "Thumbs.db", "desktop.ini"})
#: The same of folders, right below that of an artifact.
LITTER_FOLDERS = frozenset({".cache", ".git", "__MACOSX"})
#: What of it a system makes again by itself: how the name of such a file matches, and how the file begins.
_MADE_AGAIN = (
    (re.compile(r"(.*/)?\._[^/]*"), re.compile(rb"\x00\x05\x16\x07")),
    (re.compile(r"(.*/)?\.DS_Store"), re.compile(rb"\x00\x00\x00\x01Bud1")),
    (re.compile(r"(.*/)?Thumbs\.db"), re.compile(rb"\xd0\xcf\x11\xe0")),
    # What the Hub writes into every repository, and notes of files it has fetched.
    (re.compile(r"\.gitattributes"), re.compile(rb"([^\n]* filter=lfs diff=lfs merge=lfs -text\r?\n?)*\Z")),
    (re.compile(r"\.cache/(huggingface/)?\.gitignore"), re.compile(rb"\*\n?\Z")),
    (re.compile(r"\.cache/huggingface/CACHEDIR\.TAG"), re.compile(rb"Signature: ")),
    (re.compile(r"\.cache/huggingface/download/.*\.lock"), re.compile(rb"\Z")),
    (re.compile(r"\.cache/huggingface/download/.*\.metadata"), re.compile(rb"[0-9a-f]{40}\n[^\n]*\n[0-9.]+\n?\Z")),
)
#: Bytes by which such a file is known; a longer one is told by these alone.
_START = 64 * 1024


def is_litter(name: str) -> bool:
    """Whether a file is known, by its name, to be left by a system or by version control."""
    return name in LITTER or name.startswith("._")


def list_kept(folder: Path) -> list[str]:
    """What lies among the litter and is nobody's to remove: all that a system would not make again as it was."""
    kept = []
    for root, folders, files in os.walk(folder, onerror=_unreadable):
        for name in [*folders, *files]:
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            passed_over = is_litter(name) or relative.split("/")[0] in LITTER_FOLDERS
            if passed_over and (name in files or path.is_symlink()) and not _is_made_again(path, relative):
                kept.append(relative)
    return sorted(kept)


def _is_made_again(path: Path, name: str) -> bool:
    beginning = next((beginning for names, beginning in _MADE_AGAIN if names.fullmatch(name)), None)
    if beginning is None or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return beginning.match(file.read(_START)) is not None


def list_files(folder: Path) -> list[str]:
    """List every file under `folder` by its relative path; refuse kinds an artifact cannot hold.

    What systems, version control and the Hub leave in folders is passed over: nothing of it is ever read. A link to a
    file counts as that file, as in the cache of the Hub. Links to folders, empty folders,
    pipes and devices are refused, so that nothing in the folder goes unchecked.
    """
    names = []
    for root, folders, files in os.walk(folder, onerror=_unreadable):
        here = Path(root)
        folders[:] = [name for name in folders if here != folder or name not in LITTER_FOLDERS]
        files = [name for name in files if not is_litter(name)]
        for name in [*folders, *files]:
            relative = (here / name).relative_to(folder).as_posix()
            if name in files:
                _refuse_kind(folder, relative)
                names.append(relative)
            elif (here / name).is_symlink() or not any((here / name).iterdir()):
                raise _foreign(folder, relative)
    return sorted(names)


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
