"""Where an artifact comes from and what it holds: the fingerprint of its weights, its base, the chain of steps."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.artifact.card.front_matter import licence_of
from slimformer.artifact.layout import MANIFEST
from slimformer.artifact.manifest import Base, Manifest, Step, read_manifest
from slimformer.artifact.opening.fingerprints import combine, digest
from slimformer.artifact.storage.handler import storage_of, weight_files
from slimformer.errors import ArtifactError
from slimformer.files import as_path
from slimformer.models import ALIASES, cached, hub_name, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn


def fingerprint(weights: nn.Module | Mapping[str, Tensor] | str | Path) -> str:
    """Hash the content of a model's weights: names, shapes, types and values.

    The hash does not depend on the order of the tensors or on how files divide them. A model has the
    fingerprint of the folder it is saved to: a tied weight counts once, under the name it is stored by.
    A state dict is taken as it is. Tensors of int64 are left out: they number positions, and old
    checkpoints store them where the model loaded from it does not.

    Args:
        weights: a model, a state dict, or a folder with safetensors.
    """
    if isinstance(weights, str | Path):
        return _folder_fingerprint(as_path(weights))
    tensors = weights if isinstance(weights, Mapping) else stored_tensors(weights)
    return combine(_digests(tensors.items()))


def files_fingerprint(files: Iterable[Path]) -> str:
    """The fingerprint of the weights in some safetensors files, however these divide them."""
    return combine(_file_digests(files))


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that `save_pretrained` writes, by the names it gives them; those of packed weights packed."""
    from slimformer.artifact.storage.packed import file_tensors

    state = file_tensors(model, _untied(model))
    if not hasattr(model, "save_pretrained"):
        return state
    from transformers.core_model_loading import revert_weight_conversion

    transformer: Any = model
    saved: dict[str, Tensor] = revert_weight_conversion(transformer, state)
    return saved


def count(model: nn.Module) -> int:
    """Count the weights of a model that are stored, a tied one once."""
    return sum(tensor.numel() for tensor in _untied(model).values())


def size(tensors: Mapping[str, Tensor]) -> int:
    """Count the bytes the weights take in a file."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def file_size(tensors: Mapping[str, Tensor]) -> int:
    """Count the bytes of the safetensors file that `save_pretrained` makes of tensors; these may be on the meta device.

    A file is eight bytes, a header of JSON padded to a multiple of eight, and the weights, wide types first.
    """
    from safetensors.torch import _TYPES

    names = {kind: name for name, kind in _TYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    written = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-written // 8) * 8 + end


def _untied(model: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = dict(model.state_dict())
    for name in getattr(model, "_keys_to_ignore_on_save", None) or ():
        state.pop(name, None)
    if not hasattr(model, "save_pretrained"):
        return state
    from slimformer.operators import without_tied

    return without_tied(state, model)


def _folder_fingerprint(folder: Path) -> str:
    if not folder.is_dir():
        raise ArtifactError(f"no folder at `{folder}`; give a model, its state dict or its folder")
    return storage_of(folder).fingerprint(folder)


def _file_digests(files: Iterable[Path]) -> Iterable[tuple[str, str]]:
    from safetensors import SafetensorError, safe_open

    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                names = file.keys()
                yield from _digests((name, file.get_tensor(name)) for name in names)
        except SafetensorError as error:
            raise ArtifactError(f"`{path}` is not a safetensors file: {error}; copy it again") from error


def _digests(tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, str]]:
    import torch

    return ((name, tensor_digest(tensor)) for name, tensor in tensors if tensor.dtype != torch.int64)


def tensor_digest(tensor: Tensor) -> str:
    """Hash the type, shape and values of one tensor."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return digest(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), flat.view(torch.uint8).numpy().data)


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Hash the names, types, shapes and values of all tensors, those of int64 included."""
    return combine((name, tensor_digest(tensor)) for name, tensor in tensors.items())


#: Libraries whose version decides what a run computes.
LIBRARIES = ("slimformer", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def chain(
    step: Step,
    base: Base | str | Path | None,
    base_manifest: Manifest | None,
    command: str | Sequence[str] | None,
) -> list[Step]:
    """Append `step` to the steps of its base, completed with what can be found out here."""
    if base is None and base_manifest is not None:
        raise ArtifactError("`base_manifest` was given without `base`; give the name or folder of the base too")
    if base_manifest is None:
        base_manifest = _manifest_of(base)
    known = step.base if base is None else describe_base(base)
    if base_manifest is not None and known is not None:
        known = _same_base(known, base_manifest)
    if command is not None and not isinstance(command, str):
        command = shlex.join(command)
    done = step.model_copy(
        update={
            "base": known,
            "command": step.command if command is None else command,
            "versions": step.versions or versions(),
        }
    )
    return [*(base_manifest.steps if base_manifest is not None else ()), done]


def describe_base(base: Base | str | Path) -> Base:
    """Name a base and take the fingerprint of its weights, when they are on this machine.

    A folder is named by its last part only: the rest of a path says nothing to others. A model of the Hub is named
    with the commit that was read.
    """
    if isinstance(base, Base):
        return base
    hub = hub_name(base)
    if hub is None:
        folder = Path(resolve(base))
        name = str(base) if str(base) in ALIASES else folder.resolve().name
        return Base(name=name, fingerprint=fingerprint(folder), license=licence_of(folder))
    here = cached(hub)
    if here is None or not any((here / file).is_file() for file in weight_files()):
        return Base(name=hub.repo)
    return Base(name=hub.repo, revision=here.name, fingerprint=fingerprint(here), license=licence_of(here))


def versions() -> dict[str, str]:
    """Collect the versions of Python and the libraries that are installed."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _manifest_of(base: Base | str | Path | None) -> Manifest | None:
    if base is None or isinstance(base, Base):
        return None
    hub = hub_name(base)
    folder = Path(resolve(base)) if hub is None else cached(hub)
    return read_manifest(folder) if folder is not None and (folder / MANIFEST).is_file() else None


def _same_base(base: Base, manifest: Manifest) -> Base:
    recorded = manifest.model.fingerprint
    if base.fingerprint not in (None, recorded):
        raise ArtifactError(
            f"base `{base.name}` has the fingerprint {str(base.fingerprint)[:12]}… and its manifest says "
            f"{recorded[:12]}…; give the manifest of that base, or check it with `slimformer verify`"
        )
    return base.model_copy(update={"fingerprint": recorded})
