"""Checkpoints of a run that survive a kill at any moment.

A checkpoint counts once it is sealed: a last file lists every other file with its size, written after all of
them have reached the disk. Whatever is not sealed, or does not match its seal, is treated as absent.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from slimformer.artifact.staging import sync
from slimformer.errors import TrainingError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

SEAL = "sealed.json"
PREFIX = "checkpoint-"


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete, after everything in it has reached the disk."""
    sizes = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file():
            sync(path)
            sizes[path.relative_to(checkpoint).as_posix()] = path.stat().st_size
    draft = checkpoint / f"{SEAL}.tmp"
    draft.write_text(json.dumps(sizes, indent=1))
    sync(draft)
    draft.rename(checkpoint / SEAL)
    sync(checkpoint)


def is_sealed(checkpoint: Path) -> bool:
    """Tell whether a checkpoint is complete."""
    try:
        sizes = json.loads((checkpoint / SEAL).read_text())
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    complete = [path for path in folder.glob(f"{PREFIX}*") if is_sealed(path)]
    return max(complete, key=step_of, default=None)


def prune(folder: Path, keep: Path | None) -> None:
    """Remove every checkpoint but one; what is being removed loses its seal first."""
    for path in folder.glob(f"{PREFIX}*"):
        if path != keep:
            (path / SEAL).unlink(missing_ok=True)
            shutil.rmtree(path)


def step_of(checkpoint: Path) -> int:
    """The optimizer step a checkpoint was taken after."""
    number = checkpoint.name.removeprefix(PREFIX)
    if not number.isdecimal():
        raise TrainingError(f"`{checkpoint}` is not a checkpoint of a run; remove it and resume again")
    return int(number)


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
