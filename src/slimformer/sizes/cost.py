"""What an allocation costs: parameters, bytes, FLOPs or time, each a sum over blocks of what is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from slimformer.anatomy import Anatomy, unwrap
from slimformer.anatomy.matrix import is_conv1d
from slimformer.sizes.elastic import Elastic
from slimformer.sizes.size import Allocation, Size
from slimformer.views.packed import packed_of, packed_weights, small_float

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from slimformer.anatomy import Block

Measure = Literal["parameters", "bytes", "flops", "milliseconds"]


@dataclass(frozen=True)
class Costs:
    """One measure of an elastic model's cost.

    Args:
        what: "parameters"; "bytes" of them; "flops", those of one text of `length` tokens or of one image; or the
            "milliseconds" that it takes, from `measure_latency`.
        rest: Cost of all that stands outside the blocks.
        blocks: Cost of each block at each size.
        length: Tokens of the text or of the image.
    """

    what: Measure
    rest: float
    blocks: tuple[dict[Size, float], ...]
    length: int = 1

    @classmethod
    def of(cls, model: nn.Module, what: Measure = "parameters", length: int = 128) -> Costs:
        """Count a model at every size; of an image the length is its own. Time is measured, not counted."""
        elastic, anatomy = Elastic.of(model), Anatomy.of(model)
        outside, length = _outside_flops(unwrap(model), anatomy, length) if what == "flops" else (0, length)
        packed = bool(packed_weights(unwrap(model)))
        table: tuple[dict[Size, float], ...] = tuple({} for _ in anatomy.blocks)
        for size in elastic.sizes:
            with elastic.at(Allocation((size,) * len(anatomy.blocks))):
                for block, costs in zip(anatomy.blocks, table, strict=True):
                    held = _flops(block, length) if what == "flops" else _held(block.module.modules(), what, packed)
                    costs[size] = held
        return cls(what, outside if what == "flops" else _held(_outside(anatomy), what, packed), table, length)

    def total(self, allocation: Allocation) -> float:
        """Cost of the whole model."""
        return self.rest + sum(
            costs[size] for costs, size in zip(self.blocks, allocation, strict=True) if size is not None
        )


@torch.no_grad()
def _held(modules: Iterable[nn.Module], what: Measure, packed: bool) -> int:
    """Parameters or stored bytes of some modules, as their views show them; a tied weight counts once."""
    sizes: dict[int, int] = {}
    for module in modules:
        for name, original in _originals(module).items():
            tensor: Tensor = getattr(module, name)
            size = tensor.numel() if what == "parameters" else _bytes(module, name, tensor, packed)
            # Of modules that share a weight, one holds its packed form.
            sizes[id(original)] = min(size, sizes.get(id(original), size))
    return sum(sizes.values())


def _originals(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a module itself, those under views by the names they are shown under."""
    if isinstance(module, parametrize.ParametrizationList):
        return {}
    viewed: Any = getattr(module, "parametrizations", {})
    return {**dict(module.named_parameters(recurse=False)), **{name: viewed[name].original for name in viewed}}


def _bytes(module: nn.Module, name: str, tensor: Tensor, packed: bool) -> int:
    form = packed_of(module) if name == "weight" else None
    if form is None:
        stored = small_float(tensor) if packed else tensor
        return stored.numel() * stored.element_size()
    rows, columns = tensor.shape[::-1] if form.transposed else tensor.shape
    return form.bytes_at(rows, columns)


def _outside(anatomy: Anatomy) -> list[nn.Module]:
    inside = {module for block in anatomy.blocks for module in block.module.modules()}
    return [module for module in unwrap(anatomy.model).modules() if module not in inside]


def _flops(block: Block, length: int) -> int:
    """Two for each weight and token, and the two products of attention."""
    modules = {matrix.module: matrix for matrix in block.matrices.values()}
    weights = sum(cast("Tensor", module.weight).numel() for module in modules)
    return 2 * weights * length + 4 * length * length * block.heads * block.head_width


def _outside_flops(model: nn.Module, anatomy: Anatomy, length: int) -> tuple[int, int]:
    """Products with the matrices outside the blocks, and the tokens inside, as one text or image goes through."""
    inside = {module for block in anatomy.blocks for module in block.module.modules()}
    total, tokens = 0, length

    def count(module: Any, _: Any, output: Tensor) -> None:
        nonlocal total
        total += 2 * output.numel() * (module.weight.numel() // output_width(module))

    def measure(_: Any, hidden: tuple[Tensor, ...]) -> None:
        nonlocal tokens
        tokens = hidden[0].shape[1]

    hooks = [anatomy.blocks[0].module.register_forward_pre_hook(measure)]
    hooks += [
        module.register_forward_hook(count)
        for module in model.modules()
        if module not in inside and (isinstance(module, nn.Linear | nn.Conv2d) or is_conv1d(module))
    ]
    try:
        with torch.no_grad():
            model(**example_inputs(anatomy, length))
    finally:
        for hook in hooks:
            hook.remove()
    return total, tokens


def output_width(module: Any) -> int:
    """Outputs of a matrix or of a convolution."""
    return int(module.nf if is_conv1d(module) else module.weight.shape[0])


def example_inputs(anatomy: Anatomy, length: int) -> dict[str, Tensor]:
    """One text of so many tokens, or one image."""
    device = next(anatomy.model.parameters()).device
    config: Any = anatomy.config
    if anatomy.patch_embedding is None:
        one_choice = type(anatomy.model).__name__.endswith("ForMultipleChoice")
        shape = (1, 1, length) if one_choice else (1, length)
        return {"input_ids": torch.ones(shape, dtype=torch.long, device=device)}
    sides = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
    dtype = next(anatomy.patch_embedding.parameters()).dtype
    return {"pixel_values": torch.zeros(1, config.num_channels, *sides, dtype=dtype, device=device)}
