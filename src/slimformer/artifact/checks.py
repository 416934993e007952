"""The sums of files, configs without code, weights that are numbers, and the class that loads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from slimformer.artifact.layout import CONFIG, MANIFEST, list_files
from slimformer.artifact.manifest import FileSum
from slimformer.artifact.opening.configs import read_config
from slimformer.artifact.opening.files import measure
from slimformer.errors import ArtifactError
from slimformer.models.trust import CODE_KEYS, trusted
from slimformer.models.weights import not_finite

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest


def drop_code(folder: Path) -> None:
    """Take out of a freshly written folder what refers to a repository's code.

    A class that Transformers has itself needs none of it, yet its config may carry the reference on.
    """
    for path in sorted(folder.glob("*config.json")):
        config = read_config(path)
        kept = {key: value for key, value in config.items() if key not in CODE_KEYS}
        if kept != config:
            path.write_text(f"{json.dumps(kept, indent=2, ensure_ascii=False)}\n", encoding="utf-8")


def sum_file(path: Path) -> FileSum:
    """Measure one file."""
    digest, size = measure(path)
    return FileSum(sha256=digest, bytes=size)


def sum_files(folder: Path) -> dict[str, FileSum]:
    """Measure every file of `folder` but the manifest itself."""
    return {name: sum_file(folder / name) for name in list_files(folder) if name != MANIFEST}


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights of which one is NaN or infinite, wherever it lies."""
    from slimformer.operators import PackedTensor

    # Codes are numbers whatever their bytes; a weight that is packed is as finite as its scales.
    numbers = ((name, each.scales if isinstance(each, PackedTensor) else each) for name, each in tensors.items())
    name = not_finite(numbers)
    if name is not None:
        raise ArtifactError(
            f"`{name}` of {where} holds nan or infinity; it has diverged or was changed, train it again with a lower "
            "learning rate, or copy it again"
        )


def find_class(folder: Path, config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Find the class named by the config, and what it must be told of code that is trusted."""
    import transformers

    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ArtifactError(
            f"{CONFIG} of `{folder}` gives the architectures {names!r}; it must name the one class that loads the model"
        )
    for auto, reference in (config.get("auto_map") or {}).items() if trusted() else ():
        if isinstance(reference, str) and reference.rpartition(".")[2] == names[0]:
            return getattr(transformers, auto), {"trust_remote_code": True}
    architecture = getattr(transformers, names[0], None)
    if not (isinstance(architecture, type) and issubclass(architecture, transformers.PreTrainedModel)):
        raise ArtifactError(
            f"{CONFIG} of `{folder}` names the class `{names[0]}`, which is no model of transformers "
            f"{transformers.__version__}; install the version it was saved with"
        )
    return architecture, {}


def architecture_of(folder: Path) -> type[PreTrainedModel]:
    """The class of Transformers that the config of a folder names."""
    architecture: type[PreTrainedModel] = find_class(folder, read_config(folder / CONFIG))[0]
    return architecture


def check_class(folder: Path, manifest: Manifest, architecture: type) -> None:
    """Refuse a model of another class than the manifest tells."""
    if architecture.__name__ != manifest.model.architecture:
        raise ArtifactError(
            f"{CONFIG} of artifact `{folder}` is for a `{architecture.__name__}`, and the artifact is a "
            f"`{manifest.model.architecture}`; copy the artifact again"
        )
