"""Narrow blocks in wide ones: units that count for nothing fill up what a plain config cannot say otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from slimformer.anatomy import Block, Matrix
    from slimformer.artifact.storage.mask_file import Unit


def fill_up(model: nn.Module, wide: nn.Module, places: Mapping[int, Mapping[Unit, Tensor]]) -> None:
    """Give a wide model a narrow one's weights, and zeros where a unit more would add something.

    Args:
        model: The narrow model.
        wide: One of the same blocks with more neurons or heads; it computes the same afterwards.
        places: Block → where its neurons and its key-value heads go among those of the wide block.
    """
    import torch

    from slimformer.anatomy import Anatomy

    narrow_state = model.state_dict()
    with torch.no_grad():
        for name, tensor in wide.state_dict().items():
            if tensor.shape == narrow_state[name].shape:
                tensor.copy_(narrow_state[name])
    for number, (one, other) in enumerate(zip(Anatomy.of(wide).blocks, Anatomy.of(model).blocks, strict=True)):
        for unit, numbers in places[number].items():
            _copy_unit(one, other, unit, numbers)


def _copy_unit(wide: Block, block: Block, unit: Unit, places: Tensor) -> None:
    of_keys, of_queries = wide.head_width, wide.head_width * wide.heads // wide.key_value_heads
    widths = (
        {"up": 1, "gate": 1, "down": 1}
        if unit == "neurons"
        else {"query": of_queries, "key": of_keys, "value": of_keys, "output": of_queries}
    )
    there, narrow_ones = wide.matrices, block.matrices
    for role, width in widths.items():
        if role in there and there[role].shape != narrow_ones[role].shape:
            rows = role not in ("down", "output")
            _copy_matrix(there[role], narrow_ones[role], _expand(places, width), rows=rows)


def _copy_matrix(wide: Matrix, narrow_one: Matrix, places: Tensor, *, rows: bool) -> None:
    import torch

    weight = torch.zeros(wide.shape)
    weight[places if rows else slice(None), slice(None) if rows else places] = narrow_one.weight.detach()
    bias = None
    if rows and narrow_one.bias is not None:
        bias = torch.zeros(wide.shape[0])
        bias[places] = narrow_one.bias.detach()
    wide.write(weight, bias)


def _expand(places: Tensor, width: int) -> Tensor:
    import torch

    return (places[:, None] * width + torch.arange(width)).flatten()
