"""What every way of storing answers: how weights are written, read and checked, and what the card says of them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from slimformer.artifact.layout import PICKLE_SUFFIXES
from slimformer.errors import ArtifactError
from slimformer.registry import STORAGE

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest

#: How the loader of a folder's class is called: the class, and what it must be told of code that is trusted.
Loader = tuple[Any, dict[str, Any]]


class Storage(ABC):
    """One way of storing a model. Made without arguments it reads; what writing needs is given to the constructor."""

    #: Name in `registry.STORAGE`, recorded in the manifest.
    name: ClassVar[str]
    #: Files that hold the weights, in the order they are looked for; an index names the files with the tensors.
    weights: ClassVar[tuple[str, ...]]
    #: Whether a base that was cast to 16 bits will do where one is needed; set for one loading.
    cast_base: bool = False

    def recognises(self, folder: Path) -> bool:
        """Whether a folder is stored this way."""
        return any((folder / file).is_file() for file in self.weights)

    def tensor_files(self, folder: Path) -> list[Path]:
        """The safetensors files of a folder."""
        path = next(folder / file for file in self.weights if (folder / file).is_file())
        return _indexed_files(path) if path.suffix == ".json" else [path]

    @abstractmethod
    def write(self, stage: Path, model: PreTrainedModel, processor: Any, base: Any) -> None:
        """Put model and processor into a new folder; `base` is what the run started from."""

    @abstractmethod
    def read(
        self, folder: Path, loader: Loader, *, dtype: str | torch.dtype | None, base: str | Path | None
    ) -> PreTrainedModel:
        """Load the model; a weight too many, too few or of another shape is an error."""

    def processor(self, folder: Path, base: str | Path | None) -> Any:
        """The tokenizer or image processor where the folder has none of its own; None for none."""
        return None

    def describe(self, model: PreTrainedModel) -> dict[str, Any]:
        """What the manifest records of the model beyond the name of the storage."""
        return {}

    @abstractmethod
    def card(self, manifest: Manifest) -> str:
        """How the artifact is loaded, as the model card tells it."""

    def card_sizes(self, manifest: Manifest) -> list[tuple[str, str]]:
        """Rows that the card's table of sizes has beyond those of every model."""
        return []


def storage_of(folder: Path) -> Storage:
    """How the weights of a folder are stored."""
    for name in STORAGE:
        handler: Storage = STORAGE.get(name)()
        if handler.recognises(folder):
            return handler
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickled:
        raise ArtifactError(
            f"folder `{folder}` keeps its weights as a pickle, `{pickled[0]}`, which is never read; "
            "convert it with `save_pretrained`, which writes safetensors"
        )
    tried = " or ".join(f"`{file}`" for file in weight_files())
    raise ArtifactError(f"folder `{folder}` has no weights; it needs {tried}")


def plain_text(text: str) -> str:
    """Keep a text on its line and in its cell of a card, and HTML from being HTML."""
    joined = " ".join(text.split())
    return joined.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def weight_files() -> list[str]:
    """Every file name under which weights may lie in a folder."""
    return list(dict.fromkeys(file for name in STORAGE for file in STORAGE.get(name).weights))


def _indexed_files(path: Path) -> list[Path]:
    folder = path.parent
    try:
        names = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ArtifactError(f"`{path}` is not an index of weights: {error}; copy the folder again") from error
    for name in names:
        if not isinstance(name, str) or name != Path(name).name or not (folder / name).is_file():
            raise ArtifactError(f"`{path}` names the file `{name}`, which is not there; copy the folder again")
    return [folder / name for name in sorted(names)]
