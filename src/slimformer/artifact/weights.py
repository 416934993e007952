"""What the weights of a model are, whatever file they lie in: their fingerprint and their count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.artifact.storage.handler import storage_of
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
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
        return _combine(_folder_digests(Path(weights).expanduser()))
    tensors = weights if isinstance(weights, Mapping) else stored_tensors(weights)
    return _combine(_digests(tensors.items()))


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that `save_pretrained` writes, by the names it gives them; those of packed weights packed."""
    from slimformer.artifact.storage.packed_weights import file_tensors

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


def _untied(model: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = dict(model.state_dict())
    for name in getattr(model, "_keys_to_ignore_on_save", None) or ():
        state.pop(name, None)
    if not hasattr(model, "save_pretrained"):
        return state
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    transformer: Any = model
    untied: dict[str, Tensor] = remove_tied_weights_from_state_dict(state, transformer)
    return untied


def _folder_digests(folder: Path) -> Iterable[tuple[str, str]]:
    from safetensors import SafetensorError, safe_open

    if not folder.is_dir():
        raise ArtifactError(f"no folder at `{folder}`; give a model, its state dict or its folder")
    for path in storage_of(folder).tensor_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                names = file.keys()
                yield from _digests((name, file.get_tensor(name)) for name in names)
        except SafetensorError as error:
            raise ArtifactError(f"`{path}` is not a safetensors file: {error}; copy it again") from error


def _digests(tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, str]]:
    import torch

    return ((name, _digest(tensor)) for name, tensor in tensors if tensor.dtype != torch.int64)


def _digest(tensor: Tensor) -> str:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    digest = hashlib.sha256(f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _combine(digests: Iterable[tuple[str, str]]) -> str:
    total = hashlib.sha256()
    for name, digest in sorted(digests):
        # The length keeps a name that holds a newline from passing for two tensors.
        total.update(f"{len(name)} {name} {digest}\n".encode())
    return total.hexdigest()
