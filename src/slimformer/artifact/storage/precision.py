"""The type that weights have in a file: 16 bits each where that is asked for, checked for what it loses.

Weights are rounded in memory first, so that what is measured is what is stored. The config keeps saying float32: a
folder is loaded as float32, by Transformers alone too, and gives the same answers wherever that is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.artifact.manifest import Rounded
from slimformer.artifact.probe import ask, batch_for, relative_difference
from slimformer.errors import ArtifactError
from slimformer.models.settings import STORES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import ModelRecord
    from slimformer.models.settings import Store

#: How far an answer may move, of the largest one: some ten times what rounding moves those of sound models.
MOST_MOVED = {"float16": 0.02, "bfloat16": 0.1}
#: How much of a metric that chooses between models may be lost.
MOST_LOST = 0.05


def check_range(model: nn.Module, store: Store | None) -> None:
    """Refuse a model with a weight that a type cannot hold, which would become infinite.

    Args:
        model: The model.
        store: What its weights are to be stored as; None for what they are.
    """
    if store is None:
        return
    limit = _finfo(store).max
    for name, tensor in _floats(model.state_dict()):
        largest = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
        if largest > limit:
            raise ArtifactError(
                f"`--store` is `{store}`, and `{name}` holds {largest:.4g}, beyond {limit:,.0f}, the largest number of "
                f"{STORES[store]}; give `--store bfloat16`, which reaches as far as float32"
            )


def round_weights(model: PreTrainedModel, store: Store | None) -> Rounded | None:
    """Round the weights of a model, in place, to what a file in another type holds; return what that changed.

    Args:
        model: A model without views; its weights are of float32 afterwards, whatever they were.
        store: What its weights are to be stored as; None to leave them as they are.

    Returns:
        What `save` is told; None where nothing is rounded.

    Raises:
        ArtifactError: Where a weight is beyond the type's range, or answers move too far.

    Example:
        >>> rounded = round_weights(model, "half")
        >>> save("out", model, step=step, processor=tokenizer, rounded=rounded)
    """
    import torch

    if store is None:
        return None
    check_range(model, store)
    model.float()
    if store == "float32":
        return None
    batch = batch_for(model)
    before = ask(model, batch)
    dtype = getattr(torch, STORES[store])
    with torch.no_grad():
        for _, tensor in _floats(model.state_dict()):
            tensor.copy_(tensor.to(dtype))
    moved = relative_difference(before, ask(model, batch))
    if moved > MOST_MOVED[STORES[store]]:
        raise ArtifactError(
            f"`--store` is `{store}`, and answers move by {moved:.1%} of the largest one, where "
            f"{MOST_MOVED[STORES[store]]:.0%} is allowed; give {_other(store)}"
        )
    return Rounded(dtype=STORES[store], moved=float(f"{moved:.3g}"))


def check_metric(name: str, before: float, after: float, *, greater_is_better: bool) -> None:
    """Refuse a rounding that costs too much of the metric that chooses between models."""
    lost = before - after if greater_is_better else after - before
    if lost > MOST_LOST * abs(before):
        raise ArtifactError(
            f"rounded weights give {name} {after:.4f} instead of {before:.4f}, and {MOST_LOST:.0%} less is allowed; "
            "give `--store float32`, with `--resume` to go on from the last checkpoint"
        )


def shorten(files: Sequence[Path], rounded: Rounded) -> None:
    """Write files of weights anew in the type that these were rounded to.

    Raises:
        ArtifactError: Where a weight is not one that was rounded.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    dtype = getattr(torch, rounded.dtype)
    for path in files:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        for name, tensor in _floats(tensors):
            tensors[name] = tensor.to(dtype)
            if not torch.equal(tensors[name].to(tensor.dtype), tensor):
                raise ArtifactError(
                    f"`{name}` was changed after it was rounded to {rounded.dtype}; round the weights again before "
                    "saving"
                )
        save_file(tensors, path, metadata)


def bytes_as(tensors: Mapping[str, Tensor], store: Store | None) -> int:
    """Bytes that weights take in a file of that type; None for what they are of."""
    each = {} if store is None else {name: _finfo(store).bits // 8 for name, _ in _floats(tensors)}
    return sum(tensor.numel() * each.get(name, tensor.element_size()) for name, tensor in tensors.items())


def store_of(model: ModelRecord) -> Store | None:
    """What `store` an artifact was saved with; None where its weights are stored as they are loaded."""
    if model.rounded is None:
        return None
    return next(store for store, dtype in STORES.items() if dtype == model.rounded.dtype)


def describe_rounding(rounded: Rounded) -> str:
    """What rounding changed, as a person reads it."""
    metrics = "".join(f", {name} {change:+.4f}" for name, change in rounded.metrics.items())
    return f"weights stored as {rounded.dtype}: answers moved by {100 * rounded.moved:.2g} % of the largest{metrics}"


def _floats(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(name, tensor) for name, tensor in tensors.items() if tensor.is_floating_point()]


def _finfo(store: Store) -> torch.finfo:
    import torch

    dtype: Any = getattr(torch, STORES[store])
    return torch.finfo(dtype)


def _other(store: Store) -> str:
    return "`--store float32`" if store == "half" else "`--store half` or `float32`"
