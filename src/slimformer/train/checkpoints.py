"""Checkpoints of a run that survive a kill at any moment.

A checkpoint counts once it is sealed: a last file lists every other file with its SHA-256, written after all of them
have reached the disk. Whatever is not sealed, or does not match its seal, is treated as absent.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from slimformer.artifact.checks import sum_file
from slimformer.artifact.provenance import tensors_digest
from slimformer.artifact.staging import sync, write_file
from slimformer.errors import ArtifactError, TrainingError
from slimformer.files import parse_json
from slimformer.train.sharding.state import divide_like, is_sharded, place, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

SEAL = "sealed.json"
PREFIX = "checkpoint-"
#: Files that training leaves in a checkpoint, those of FSDP and DeepSpeed included.
RUN_FILES = re.compile(
    r".+\.(safetensors|json|pt|pth|bin|distcp|tmp)|\.metadata|\..+\.tmp-[0-9a-f]{8}|latest|zero_to_fp32\.py"
)
#: Under this name the sum of the tensors stands in a file of weights.
SUM = "sha256"


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete, after everything in it has reached the disk."""
    sums = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file():
            sync(path)
            sums[path.relative_to(checkpoint).as_posix()] = sum_file(path).sha256
    write_file(checkpoint / SEAL, json.dumps(sums, indent=1).encode())


def is_sealed(checkpoint: Path) -> bool:
    """Tell whether a checkpoint was completed, without reading what is in it."""
    return (checkpoint / SEAL).is_file()


def damage(checkpoint: Path) -> str | None:
    """What of a sealed checkpoint is not as it was written; None if all is."""
    try:
        sums: dict[str, str] = parse_json((checkpoint / SEAL).read_bytes())
        changed = [name for name, expected in sums.items() if sum_file(checkpoint / name).sha256 != expected]
    except (OSError, ValueError, AttributeError):
        return SEAL
    except ArtifactError as error:
        return error.reason
    if not sums:  # no checkpoint is empty
        return SEAL
    return changed[0] if changed else None


def latest(folder: Path, on_damage: Callable[[str], None] | None = None) -> Path | None:
    """The newest complete checkpoint of a run, or None.

    Args:
        folder: The folder of the run.
        on_damage: Told of a checkpoint that was complete once and is not used because it has changed since.
    """
    for path in sorted(_checkpoints(folder), key=step_of, reverse=True):
        if not is_sealed(path):
            continue
        changed = damage(path)
        if changed is None:
            return path
        if on_damage is not None:
            on_damage(f"`{path}` is damaged (`{changed}` is not what was written) and is not used")
    return None


def check_reached(checkpoint: Path | None, steps: int) -> None:
    """Refuse to end a run before the step it has reached."""
    reached = 0 if checkpoint is None else step_of(checkpoint)
    if checkpoint is not None and reached > steps:
        raise TrainingError(
            f"`max_steps` is {steps}, and the run in `{checkpoint.parent}` has taken {reached} steps; give as many or "
            "more, or remove the folder to start anew"
        )


def any_sealed(folder: Path) -> bool:
    """Whether a run can be resumed, as far as can be told without reading what lies there."""
    return any(is_sealed(path) for path in _checkpoints(folder))


def prune(folder: Path, keep: Path | None) -> None:
    """Remove every checkpoint but one; what is being removed loses its seal first."""
    for path in _checkpoints(folder):
        if path != keep:
            remove(path)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, its seal first; files of kinds that no run writes stay, and the folders they lie in."""
    (checkpoint / SEAL).unlink(missing_ok=True)
    for root, _, files in os.walk(checkpoint, topdown=False):
        folder = Path(root)
        for name in files:
            if RUN_FILES.fullmatch(name):
                (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # something of the user's is left in it
            folder.rmdir()


def step_of(checkpoint: Path) -> int:
    """The optimizer step a checkpoint was taken after."""
    return int(checkpoint.name.removeprefix(PREFIX))


def _checkpoints(folder: Path) -> list[Path]:
    """The folders of checkpoints; of other names, and links, we know nothing."""
    paths = [path for path in folder.glob(f"{PREFIX}*") if re.fullmatch(rf"{PREFIX}[0-9]+", path.name)]
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def write_weights(
    model: nn.Module,
    path: Path,
    metadata: dict[str, str] | None = None,
    *,
    summed: bool = True,
    writes: bool = True,
) -> None:
    """Write a model's state to a file, whole or not at all; a tensor that is shared is written once.

    Where each process holds a part of the model, all call it together, and one writes.

    Args:
        model: The model.
        path: The file.
        metadata: What to note beside the weights.
        summed: Whether the file has a sum of its own; in a checkpoint the seal has one of every file.
        writes: Whether this process is the one that writes.
    """
    seen: set[tuple[int, tuple[int, ...]]] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        key = place(tensor)
        # Gathered by all alike, also what turns out to be shared: of a small tensor a process may hold nothing.
        full = whole(tensor)
        if writes and (tensor.numel() == 0 or key not in seen):
            seen.add(key)
            tensors[name] = (full.cpu() if is_sharded(tensor) else full.detach()).contiguous()
    if not writes:
        return
    draft = path.with_suffix(".tmp")
    own_sum = {SUM: tensors_digest(tensors)} if summed else {}
    try:
        save_file(tensors, draft, metadata={"format": "pt", **(metadata or {}), **own_sum})
        sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def read_weights(model: nn.Module, path: Path, *, summed: bool = True) -> None:
    """Load a model's state from a file that `write_weights` wrote for the same model, in the same way."""
    expected = read_metadata(path).get(SUM)
    stored = load_file(path)
    if summed and expected != tensors_digest(stored):
        raise TrainingError(f"the weights in `{path}` are not what was written; remove `{path.parent}` to start anew")
    state = model.state_dict()
    places = {place(tensor) for name, tensor in state.items() if name in stored}
    for name, tensor in state.items():
        if name not in stored and place(tensor) not in places:
            raise TrainingError(f"`{path}` lacks `{name}`; it belongs to another model: remove it and start anew")
    unknown = sorted(stored.keys() - state.keys())
    if unknown:
        raise TrainingError(f"`{path}` holds `{unknown[0]}`, which this model has not; remove it and start anew")
    model.load_state_dict({name: divide_like(tensor, state[name]) for name, tensor in stored.items()}, strict=False)


def read_metadata(path: Path, *expected: str) -> dict[str, str]:
    """What was noted in a file beside the weights, all that is expected there at least."""
    try:
        with safe_open(path, framework="pt") as file:
            noted = dict(file.metadata() or {})
    except SafetensorError as error:
        raise TrainingError(f"`{path}` is damaged ({error}); remove `{path.parent}` to start anew") from error
    for name in expected:
        if name not in noted:
            raise TrainingError(f"`{path}` was written by no run: no `{name}`; remove `{path.parent}` to start anew")
    return noted
