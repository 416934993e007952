"""What an allocation costs: parameters, bytes and FLOPs, each a sum over blocks of what is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from slimformer.anatomy import Anatomy, unwrap
from slimformer.anatomy.matrix import is_conv1d
from slimformer.sizes.elastic import Elastic
from slimformer.sizes.size import Allocation, Size

if TYPE_CHECKING:
    from torch import Tensor

    from slimformer.anatomy import Block

Measure = Literal["parameters", "bytes", "flops"]


@dataclass(frozen=True)
class Costs:
    """One measure of an elastic model's cost.

    Args:
        what: "parameters"; "bytes" of them; or "flops", those of one text of `length` tokens.
        rest: Cost of all that stands outside the blocks.
        blocks: Cost of each block at each size.
        length: Tokens of the text.
    """

    what: Measure
    rest: int
    blocks: tuple[dict[Size, int], ...]
    length: int = 1

    @classmethod
    def of(cls, model: nn.Module, what: Measure = "parameters", length: int = 128) -> Costs:
        """Count a model at every size."""
        elastic, anatomy = Elastic.of(model), Anatomy.of(model)
        table: tuple[dict[Size, int], ...] = tuple({} for _ in anatomy.blocks)
        for size in elastic.sizes:
            with elastic.at(Allocation((size,) * len(anatomy.blocks))):
                for block, costs in zip(anatomy.blocks, table, strict=True):
                    costs[size] = _flops(block, length) if what == "flops" else _held(block.module, what)
        rest = _rest_flops(unwrap(model), anatomy, length) if what == "flops" else _rest_held(anatomy, what)
        return cls(what, rest, table, length)

    def total(self, allocation: Allocation) -> int:
        """Cost of the whole model."""
        return self.rest + sum(
            costs[size] for costs, size in zip(self.blocks, allocation, strict=True) if size is not None
        )


@torch.no_grad()
def _held(module: nn.Module, what: Measure) -> int:
    """Parameters or bytes of a module, as its views show them."""
    total = 0
    for part in module.modules():
        tensors = [getattr(part, name) for name in getattr(part, "parametrizations", ())]
        tensors += part.parameters(recurse=False)
        if not _holds_originals(part):
            total += sum(t.numel() * (t.element_size() if what == "bytes" else 1) for t in tensors)
    return total


def _holds_originals(part: nn.Module) -> bool:
    """Whether a module keeps the weights under a view, which are counted as the view shows them."""
    return isinstance(part, torch.nn.utils.parametrize.ParametrizationList)


def _rest_held(anatomy: Anatomy, what: Measure) -> int:
    inside = {id(p) for block in anatomy.blocks for p in block.module.parameters()}
    outside = [p for p in unwrap(anatomy.model).parameters() if id(p) not in inside]
    return sum(p.numel() * (p.element_size() if what == "bytes" else 1) for p in outside)


def _flops(block: Block, length: int) -> int:
    """Two for each weight and token, and the two products of attention."""
    modules = {matrix.module: matrix for matrix in block.matrices.values()}
    weights = sum(cast("Tensor", module.weight).numel() for module in modules)
    return 2 * weights * length + 4 * length * length * block.heads * block.head_width


def _rest_flops(model: nn.Module, anatomy: Anatomy, length: int) -> int:
    """Products with the matrices outside the blocks, counted while one text or image goes through the model."""
    inside = {module for block in anatomy.blocks for module in block.module.modules()}
    total = 0

    def count(module: Any, _: Any, output: Tensor) -> None:
        nonlocal total
        total += 2 * output.numel() * (module.weight.numel() // output_width(module))

    hooks = [
        module.register_forward_hook(count)
        for module in model.modules()
        if module not in inside and (isinstance(module, nn.Linear | nn.Conv2d) or is_conv1d(module))
    ]
    try:
        with torch.no_grad():
            model(**_example(anatomy, length))
    finally:
        for hook in hooks:
            hook.remove()
    return total


def output_width(module: Any) -> int:
    """Outputs of a matrix or of a convolution."""
    return int(module.nf if is_conv1d(module) else module.weight.shape[0])


def _example(anatomy: Anatomy, length: int) -> dict[str, Tensor]:
    device = next(anatomy.model.parameters()).device
    config: Any = anatomy.config
    if anatomy.patch_embedding is None:
        return {"input_ids": torch.ones(1, length, dtype=torch.long, device=device)}
    sides = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
    dtype = next(anatomy.patch_embedding.parameters()).dtype
    return {"pixel_values": torch.zeros(1, config.num_channels, *sides, dtype=dtype, device=device)}
