"""What every way of storing answers: how weights are written, read and checked, and what the card says of them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from slimformer.artifact.layout import MANIFEST
from slimformer.artifact.manifest import read_manifest
from slimformer.errors import ArtifactError, CheckpointError, RegistryError, visible
from slimformer.models.weights import tensor_files
from slimformer.registry import STORAGE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest

#: How the loader of a folder's class is called: the class, and what it must be told of code that is trusted.
Loader = tuple[Any, dict[str, Any]]


#: Words, and numbers and versions; a dot between letters may make a link, an underscore may make italics.
_HARMLESS = re.compile(r"(?:[^\W_]|[ ,+%-])*|[\d.,+e-]+(?: bytes)?|[\d.]+\+[a-z]+\d*")


class Storage(ABC):
    """One way of storing a model. Made without arguments it reads; what writing needs is given to the constructor."""

    #: Name in `registry.STORAGE`, recorded in the manifest.
    name: ClassVar[str]
    #: Files that hold the weights, in the order they are looked for; an index names the files with the tensors.
    weights: ClassVar[tuple[str, ...]]
    #: Files beside the weights that say what of them is the model; the probe holds their sums.
    bound: ClassVar[tuple[str, ...]] = ()
    #: Whether it cannot be loaded without the base it was made from.
    needs_base: ClassVar[bool] = False
    #: Whether several sizes are nested in what is stored.
    nested: ClassVar[bool] = False
    #: What the Hub calls the library that loads it.
    library: ClassVar[str] = "transformers"
    #: What the Hub calls the way from its base to it.
    relation: ClassVar[Literal["finetune", "quantized", "adapter"]] = "finetune"
    #: Why a method that needs another base does not start from it, and what to do; `{name}` is what the user calls it.
    no_base: ClassVar[str] = "is stored in a way that this method does not start from; give a plain checkpoint"

    def recognises(self, folder: Path) -> bool:
        """Whether a folder is stored this way."""
        return any((folder / file).is_file() for file in self.weights)

    def tensor_files(self, folder: Path) -> list[Path]:
        """The safetensors files of a folder."""
        return indexed_files(folder, self.weights)

    def base_files(self, folder: Path, base: str | Path | None, *, cast_base: bool = False) -> list[Path]:
        """The weight files of another model without which a folder cannot be loaded."""
        return []

    def fingerprint(self, folder: Path) -> str:
        """Hash the content of a folder's weights."""
        from slimformer.artifact.provenance import files_fingerprint

        return files_fingerprint(self.tensor_files(folder))

    def check(self, folder: Path) -> tuple[tuple[str, ...], float] | None:
        """Check a folder whose model does not run in PyTorch; None where it does, and is checked there.

        Returns:
            The names of its outputs, and the largest difference to the answers recorded.
        """
        return None

    @abstractmethod
    def write(self, stage: Path, model: PreTrainedModel, processor: Any, base: Any) -> None:
        """Put model and processor into a new folder; `base` is what the run started from."""

    @abstractmethod
    def read(
        self,
        folder: Path,
        loader: Loader,
        *,
        dtype: str | torch.dtype | None,
        base: str | Path | None,
        cast_base: bool = False,
    ) -> PreTrainedModel:
        """Load the model; a weight too many, too few or of another shape is an error.

        Args:
            folder: The folder.
            loader: The class that loads it.
            dtype: Type of the weights in memory; as saved when not given.
            base: Where the base is, for what needs one; where it was at saving when not given.
            cast_base: Whether that base may have been cast to 16 bits.
        """

    def processor(self, folder: Path, base: str | Path | None, *, cast_base: bool = False) -> Any:
        """The tokenizer or image processor where the folder has none of its own; None for none."""
        return None

    def describe(self, model: PreTrainedModel) -> dict[str, Any]:
        """What the manifest records of the model beyond the name of the storage."""
        return {}

    def public(self, folder: Path) -> dict[str, bytes]:
        """Files of a folder that tell where something lies on this machine, by name, as others may see them."""
        return {}

    @abstractmethod
    def card(self, manifest: Manifest) -> str:
        """How the artifact is loaded, as the model card tells it."""

    def card_sizes(self, manifest: Manifest) -> list[tuple[str, str]]:
        """Rows that the card's table of sizes has beyond those of every model."""
        return []


def storage_of(folder: Path, manifest: Manifest | None = None) -> Storage:
    """How the weights of a folder are stored: as its manifest says, or as its files look where there is none.

    Args:
        folder: The folder.
        manifest: Its manifest, where it has been read already.
    """
    if manifest is None and (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
    # Format 1 did not tell of rounded activations, which need slimformer too.
    if manifest is not None and manifest.format > 1:
        return _recorded(folder, manifest.model.storage)
    # Those from outside come first: what they write may look like a plain checkpoint, and no less.
    for name in sorted(STORAGE, key=lambda name: name in STORAGE.own):
        handler: Storage = STORAGE.get(name)()
        if handler.recognises(folder):
            return handler
    indexed_files(folder, weight_files())
    raise ArtifactError(f"folder `{folder}` has weights that no way of storing recognises; copy it again")


def indexed_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The safetensors files that one of several names stands for, or the index of that name."""
    try:
        return tensor_files(folder, names)
    except CheckpointError as error:
        raise ArtifactError(str(error)) from error


def _recorded(folder: Path, name: str) -> Storage:
    try:
        handler: Storage = STORAGE.get(name)()
    except RegistryError as error:
        raise ArtifactError(
            f"artifact `{folder}` stores its weights as `{name}`, which is not known here; install the package that "
            "wrote it"
        ) from error
    if not handler.recognises(folder):
        files = " or ".join(f"`{file}`" for file in handler.weights)
        raise ArtifactError(
            f"artifact `{folder}` is stored as `{name}` by its {MANIFEST}, and its files are not: it needs {files} and "
            "a config that agrees; copy the artifact again"
        )
    return handler


def as_code(text: str) -> str:
    """A text as code of a card, on its line and in its cell: links and HTML in it are dead, whatever renders it."""
    joined = " ".join(visible(text).split()).replace("`", "'").replace("|", "¦")
    return f"`{joined}`" if joined else ""


def as_cell(text: str) -> str:
    """A text in a card: words and numbers as they are, whatever else as code."""
    return text if _HARMLESS.fullmatch(text) else as_code(text)


def weight_files() -> list[str]:
    """Every file name under which weights may lie in a folder."""
    return list(dict.fromkeys(file for name in STORAGE for file in STORAGE.get(name).weights))
