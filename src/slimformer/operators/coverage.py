"""How many packed weights of a model run by an operator, and how many as floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimformer.operators.tensor import PackedTensor
from slimformer.views.packed import packed_weights

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Coverage:
    """How the packed weights of a model run.

    Args:
        packed: Names of those that an operator reads packed.
        expanded: Names of those that are floats in memory.
        bytes: Bytes of all weights and buffers in memory, tied ones once.
    """

    packed: tuple[str, ...]
    expanded: tuple[str, ...]
    bytes: int


def coverage(model: nn.Module) -> Coverage:
    """Count the packed weights of a model that stay packed and those that were expanded."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for name in packed_weights(model):
        weight = model.get_submodule(name.rpartition(".")[0])._parameters.get("weight")
        names[isinstance(weight, PackedTensor) and weight.expanded is None].append(name)
    held = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}.values()
    size = sum(
        each.held_bytes if isinstance(each, PackedTensor) else each.numel() * each.element_size() for each in held
    )
    return Coverage(tuple(names[True]), tuple(names[False]), size)
