"""The trainable state of a model as one safetensors file, views and tied weights included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from slimformer.artifact.staging import sync
from slimformer.errors import TrainingError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn


def write_weights(model: nn.Module, path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a model's state to a file, whole or not at all; a tensor that is shared is written once."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() == 0 or key not in seen:
            seen.add(key)
            tensors[name] = tensor.detach().contiguous()
    draft = path.with_suffix(".tmp")
    save_file(tensors, draft, metadata={"format": "pt", **(metadata or {})})
    sync(draft)
    draft.rename(path)


def read_weights(model: nn.Module, path: Path) -> None:
    """Load a model's state from a file written by `write_weights` for the same model."""
    stored = load_file(path)
    state = model.state_dict()
    pointers = {(tensor.data_ptr(), tuple(tensor.shape)) for name, tensor in state.items() if name in stored}
    for name, tensor in state.items():
        if name not in stored and (tensor.data_ptr(), tuple(tensor.shape)) not in pointers:
            raise TrainingError(f"`{path}` lacks `{name}`; it belongs to another model: remove it and start anew")
    unknown = sorted(stored.keys() - state.keys())
    if unknown:
        raise TrainingError(f"`{path}` holds `{unknown[0]}`, which this model has not; remove it and start anew")
    model.load_state_dict(stored, strict=False)


def read_metadata(path: Path) -> dict[str, str]:
    """What was noted in a file beside the weights."""
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})
