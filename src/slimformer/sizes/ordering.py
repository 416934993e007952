"""Which units of a block matter most, so that the small sizes get them: the order of neurons and heads before nesting.

A unit is worth the mean square of what it adds to the hidden states. For a neuron with activation h and column w of the
last feed-forward matrix that is E[h²]·‖w‖²; for a head with output x and columns W of the output projection it is
E[‖W·x‖²] = tr(WᵀW·E[x·xᵀ]). MatFormer (arXiv 2310.07707) trains from scratch and needs no order; for a pretrained model
the order decides what its small sizes start from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from slimformer.anatomy import Anatomy, unwrap
from slimformer.errors import SizeError
from slimformer.views import attached

if TYPE_CHECKING:
    from slimformer.anatomy import Block

Batch = Mapping[str, Any]


class Importance(NamedTuple):
    """What each unit of a block is worth: [neurons] and [key-value heads]."""

    neurons: Tensor
    heads: Tensor


@torch.no_grad()
def importance(model: nn.Module, batches: Iterable[Batch]) -> list[Importance]:
    """What the units of every block add to the hidden states, measured on some batches without their padding."""
    anatomy = Anatomy.of(model)
    sums = [_Sums(block) for block in anatomy.blocks]
    real: list[Tensor | None] = [None]
    hooks = []
    for block, total in zip(anatomy.blocks, sums, strict=True):
        hooks.append(block.down.module.register_forward_pre_hook(partial(_record, total.add_neurons, real)))
        hooks.append(block.output.module.register_forward_pre_hook(partial(_record, total.add_heads, real)))
    training = model.training
    seen = 0
    try:
        model.eval()
        for batch in batches:
            real[0] = batch.get("attention_mask")
            model(**batch)
            seen += 1
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    if not seen:
        raise SizeError("there is no calibration text to order the neurons by; give some, or order by magnitude")
    return [total.importance() for total in sums]


@torch.no_grad()
def magnitude(model: nn.Module) -> list[Importance]:
    """The same from weights alone, as if all inputs of a block were independent with variance 1."""
    return [Importance(_neurons_by_weight(block), _heads_by_weight(block)) for block in Anatomy.of(model).blocks]


def reorder(model: nn.Module, worth: Sequence[Importance], heads: bool = False) -> list[list[int]]:
    """Put the most important neurons, and heads if asked for, first in every block; return the order of neurons.

    The model computes what it did before, but for the order in which sums are taken.
    """
    if next(attached(unwrap(model)), None) is not None:
        raise SizeError("the model carries views; order its neurons before it is made elastic, masked or quantized")
    orders = []
    for block, units in zip(Anatomy.of(model).blocks, worth, strict=True):
        order = units.neurons.argsort(descending=True, stable=True).tolist()
        block.keep_neurons(order)
        if heads:
            block.keep_heads(units.heads.argsort(descending=True, stable=True).tolist())
        orders.append(order)
    return orders


#: Ways to find the order: name → (model, batches) → worth; None for the order as it is.
ORDERINGS: dict[str, Callable[[nn.Module, Iterable[Batch]], list[Importance]] | None] = {
    "activation": importance,
    "magnitude": lambda model, _: magnitude(model),
    "none": None,
}


class _Sums:
    """Second moments of what enters the last matrix of both sub-layers of a block, summed over tokens."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.neurons: Any = 0
        self.heads: Any = 0
        self.tokens = 0

    def add_neurons(self, inputs: Tensor) -> None:
        self.neurons = self.neurons + inputs.square().sum(0)
        self.tokens += len(inputs)

    def add_heads(self, inputs: Tensor) -> None:
        by_head = inputs.unflatten(-1, (self.block.key_value_heads, -1))
        self.heads = self.heads + torch.einsum("thi,thj->hij", by_head, by_head)

    def importance(self) -> Importance:
        tokens = max(1, self.tokens)
        columns = self.block.output.weight.to(self.heads).unflatten(1, (self.block.key_value_heads, -1))
        gram = torch.einsum("ohi,ohj->hij", columns, columns)
        norms = self.block.down.weight.to(self.neurons).square().sum(0)
        return Importance(self.neurons / tokens * norms, (gram * self.heads).sum((1, 2)) / tokens)


def _record(add: Callable[[Tensor], None], real: list[Tensor | None], module: nn.Module, args: tuple[Any, ...]) -> None:
    inputs: Tensor = args[0].detach().float()
    mask = real[0]
    keep = mask is not None and mask.shape == inputs.shape[:-1]
    add(inputs[mask.bool()] if keep and mask is not None else inputs.flatten(0, -2))


def _neurons_by_weight(block: Block) -> Tensor:
    worth: Tensor = block.down.weight.float().square().sum(0)
    for matrix in (block.up, block.gate):
        if matrix is not None:
            worth = worth * matrix.weight.float().square().sum(1)
    return worth


def _heads_by_weight(block: Block) -> Tensor:
    groups = block.key_value_heads
    output: Tensor = block.output.weight.float().square().sum(0).unflatten(0, (groups, -1)).sum(1)
    if block.shares_keys:
        return output
    value: Tensor = block.value.weight.float().square().sum(1).unflatten(0, (groups, -1)).sum(1)
    return output * value
