"""What can be said of a checkpoint before a weight is read: its files, and whether its config asks for the possible.

A config is text that anyone can change, and what it asks for is allocated before it is compared with the weights.
So sizes are compared with what the files hold first.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.errors import CheckpointError
from slimformer.files import JsonError, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor, nn

#: A config is a few kilobytes; the longest lists of labels make it some megabytes.
CONFIG_BYTES = 2**26
#: How text is generated, where a checkpoint says so.
GENERATION = "generation_config.json"
#: Files that hold the weights of a plain checkpoint, in the order they are looked for.
PLAIN_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
#: An index has a line for each tensor.
INDEX_BYTES = 2**26
#: Kinds of file that hold a Python pickle, which runs code when it is read.
PICKLE_SUFFIXES = frozenset({".bin", ".ckpt", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth"})

#: Weights a model may have beyond twice those in its files: heads that are new, poolers, tables that are computed.
FREE_WEIGHTS = 1 << 26
#: Types of the weights of a plain checkpoint, as safetensors calls them.
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
#: Weights that a byte of codes stands for at most.
CODES_IN_BYTE = 8


def read_config(path: Path) -> dict[str, Any]:
    """Read one config of a checkpoint as a JSON object."""
    try:
        config = read_json(path, CONFIG_BYTES)
    except OSError as error:
        raise CheckpointError(f"`{path}` cannot be read: {error.strerror}; copy the folder again") from error
    except JsonError as error:
        raise CheckpointError(f"`{path}` is not valid JSON: {error}; copy the folder again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"`{path}` holds a {type(config).__name__}, not an object; copy the folder again")
    return config


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


def check_types(files: Sequence[Path]) -> None:
    """Refuse files of a plain checkpoint with weights that are no floats: a cast would make something of them.

    Whole numbers may stand for positions, which old checkpoints store and nobody reads.
    """
    for path in files:
        for name, dtype, _ in _headers(path):
            if dtype not in FLOATS and not (dtype == "I64" and name.endswith("position_ids")):
                raise CheckpointError(
                    f"`{name}` in `{path}` is of type `{dtype}`, and weights are floats unless config.json says by "
                    "`quantization_config` what else they are; take the checkpoint they were made from"
                )


def _held(files: Sequence[Path]) -> tuple[int, int]:
    """How many tensors some files hold, and how many weights these stand for at most; only headers are read."""
    tensors = weights = 0
    for path in files:
        for _, dtype, shape in _headers(path):
            tensors += 1
            weights += math.prod(shape) * (CODES_IN_BYTE if dtype == "U8" else 1)
    return tensors, weights


def _headers(path: Path) -> Iterator[tuple[str, str, list[int]]]:
    """Name, type and shape of each tensor of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (no mapping)
                part = file.get_slice(key)
                yield key, part.get_dtype(), part.get_shape()
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"`{path}` is not a safetensors file: {error}; copy it again") from error
