"""Tensors of which each process holds a part, and the same tensors whole, as files hold them.

What gathers is done by all processes together, in the same order.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

if TYPE_CHECKING:
    from torch.optim import Optimizer


def is_sharded(value: object) -> bool:
    """Whether each process holds a part of a tensor."""
    loaded = sys.modules.get("torch.distributed.tensor")  # which takes its time, and there is none before
    return loaded is not None and isinstance(value, loaded.DTensor)


def whole(value: Any) -> Any:
    """A tensor as a whole; anything else as it is."""
    return value.detach().full_tensor() if is_sharded(value) else value


def place(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    """Where a tensor lies: two names of one tensor give the same."""
    local: Tensor = cast("Any", tensor).to_local() if is_sharded(tensor) else tensor
    return local.data_ptr(), tuple(tensor.shape)


def divide_like(tensor: Tensor, other: Any) -> Tensor:
    """A tensor that all processes hold, divided as another one is; as it is where that is whole."""
    if not is_sharded(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    placements, mesh = other.placements, other.device_mesh
    return distribute_tensor(tensor.to(other.device), mesh, placements, src_data_rank=None)


def read_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer with whole tensors, the same however weights are divided; on the CPU."""
    state = optimizer.state_dict()
    gathered = {
        number: {name: whole(value).cpu() if is_sharded(value) else value for name, value in entries.items()}
        for number, entries in state["state"].items()
    }
    return {**state, "state": gathered}


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Put a state with whole tensors back into an optimizer whose weights may be divided."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    divided = dict(state["state"])
    for number, weight in zip(numbers, weights, strict=True):
        if number in divided:
            divided[number] = {
                name: divide_like(value, weight) if isinstance(value, Tensor) and value.shape == weight.shape else value
                for name, value in divided[number].items()
            }
    optimizer.load_state_dict({**state, "state": divided})
