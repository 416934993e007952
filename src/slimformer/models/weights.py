"""What can be said of a checkpoint before a weight is read: its files, and whether its config asks for the possible.

A config is text that anyone can change, and what it asks for is allocated before it is compared with the weights.
So sizes are compared with what the files hold first.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.errors import CheckpointError
from slimformer.files import JsonError, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor, nn

#: A config is a few kilobytes; the longest lists of labels make it some megabytes.
CONFIG_BYTES = 2**26
#: Files that hold the weights of a plain checkpoint, in the order they are looked for.
PLAIN_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
#: An index has a line for each tensor.
INDEX_BYTES = 2**26
#: Kinds of file that hold a Python pickle, which runs code when it is read.
PICKLE_SUFFIXES = frozenset({".bin", ".ckpt", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth"})

#: Parts of one kind, such as blocks, that a model may have; each takes time to build, even without weights.
MAX_PARTS = 2048
_PARTS = re.compile(r"(layers?|blocks?|groups?|group_num|experts|stages?|depth)$")
#: Outputs that a head may have; the names of all of them are made when a config is read.
MAX_LABELS = 1 << 20
#: Weights a model may have beyond twice those in its files: heads that are new, poolers, tables that are computed.
FREE_WEIGHTS = 1 << 26
#: Weights that a byte of codes stands for at most.
CODES_IN_BYTE = 8


def check_counts(config: Mapping[str, Any], name: str) -> None:
    """Refuse a config, as read from JSON, whose counts no model has; building them would take hours or gigabytes."""
    for key, value in config.items():
        if isinstance(value, dict):
            check_counts(value, name)
        limit = MAX_LABELS if key in ("num_labels", "_num_labels") else MAX_PARTS if _PARTS.search(key) else None
        if limit is not None and isinstance(value, int | float) and value > limit:
            raise CheckpointError(
                f"config.json of `{name}` asks for `{key}` {value:,}, and at most {limit:,} are built; "
                "copy the checkpoint again"
            )


def tensor_files(folder: Path, names: Sequence[str] = PLAIN_WEIGHTS) -> list[Path]:
    """The safetensors files of a checkpoint, by default a plain one; an index names files of its own folder only."""
    for name in names:
        path = folder / name
        if path.is_file():
            return _indexed(path) if path.suffix == ".json" else [path]
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickled:
        raise CheckpointError(
            f"folder `{folder}` keeps its weights as a pickle, `{pickled[0]}`, which may run code and is never read; "
            "load it with transformers where you trust it, and start from what `save_pretrained` writes"
        )
    needed = " or ".join(f"`{name}`" for name in names)
    raise CheckpointError(f"folder `{folder}` has no weights; it needs {needed}")


def _indexed(path: Path) -> list[Path]:
    try:
        index = read_json(path, INDEX_BYTES)
    except (OSError, JsonError) as error:
        raise CheckpointError(f"`{path}` is not an index of weights: {error}; copy the folder again") from error
    for key in ("metadata", "weight_map"):  # Transformers reads both
        if not isinstance(index, dict) or not isinstance(index.get(key), dict):
            raise CheckpointError(
                f"`{path}` is not an index of weights: it has no object `{key}`; copy the folder again, or save the "
                "model anew with `save_pretrained`"
            )
    names = set(map(str, index["weight_map"].values()))
    if not names:
        raise CheckpointError(f"`{path}` names no file of weights; copy the folder again")
    for name in names:
        if name != Path(name).name or not (path.parent / name).is_file():
            raise CheckpointError(f"`{path}` names the file `{name}`, which is not in its folder; copy it again")
    return [path.parent / name for name in sorted(names)]


def check_size(name: str, blocks: Any, build: Callable[[], nn.Module], files: Sequence[Path]) -> None:
    """Refuse a model that is far larger than what its files hold: it would be allocated before it is compared.

    Args:
        name: What the user calls it.
        blocks: How many blocks the config asks for, if it says so.
        build: Makes the model on the meta device.
        files: Its safetensors files.
    """
    import torch

    tensors, stored = _held(files)
    if isinstance(blocks, int) and blocks > tensors:
        raise CheckpointError(
            f"config.json of `{name}` asks for {blocks:,} blocks, and its files hold {tensors:,} weights in all; "
            "check that the folder holds the model its config.json describes"
        )
    with torch.device("meta"):
        skeleton = build()
    needed = sum(each.numel() for each in (*skeleton.parameters(), *skeleton.buffers()))
    if needed > 2 * stored + FREE_WEIGHTS:
        raise CheckpointError(
            f"config.json of `{name}` asks for {needed:,} numbers, and its files hold {stored:,}; "
            "check that the folder holds the model its config.json describes"
        )


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds NaN or infinity; None where all are numbers. One pass, nothing copied."""
    import torch

    for name, tensor in tensors:
        if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
            continue
        low, high = torch.aminmax(tensor.detach())  # NaN is passed on
        if not (torch.isfinite(low) and torch.isfinite(high)):
            return name
    return None


def _held(files: Sequence[Path]) -> tuple[int, int]:
    """How many tensors some files hold, and how many weights these stand for at most; only headers are read."""
    from safetensors import SafetensorError, safe_open

    tensors = weights = 0
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (no mapping)
                    part = file.get_slice(key)
                    size = 1
                    for length in part.get_shape():
                        size *= length
                    tensors += 1
                    weights += size * (CODES_IN_BYTE if part.get_dtype() == "U8" else 1)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"`{path}` is not a safetensors file: {error}; copy it again") from error
    return tensors, weights
