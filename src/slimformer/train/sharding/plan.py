"""Which modules are divided by themselves: the blocks; all else is gathered once for the whole model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slimformer.anatomy import Anatomy
from slimformer.errors import AnatomyError
from slimformer.objectives import RecordedStudent

if TYPE_CHECKING:
    from torch import nn


def units(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model that are gathered one after the other, in their order.

    A block that shares a weight with something else, or is run several times under several names, stays with the
    whole: a weight belongs to one unit alone.
    """
    try:
        anatomy = Anatomy.of(model.model if isinstance(model, RecordedStudent) else model)
    except AnatomyError:  # what has no blocks that we know is divided as one
        return []
    owners = _count(model)
    blocks = [(block.module, _count(block.module)) for block in anatomy.blocks]
    return [block for block, inside in blocks if all(owners[weight] == count for weight, count in inside.items())]


def _count(module: nn.Module) -> Counter[nn.Parameter]:
    """How many names each weight has."""
    return Counter(weight for _, weight in module.named_parameters(remove_duplicate=False))
