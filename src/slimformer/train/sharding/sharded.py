"""A model that is divided while it trains, and put together again in place."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from slimformer.train.sharding.plan import units
from slimformer.train.sharding.state import is_sharded, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

#: Where modules keep their hooks. What PyTorch hangs in there to gather weights it does not take off itself.
HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
#: What is noted beside a hook under its number.
NOTES = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
FSDP = "torch.distributed.fsdp"


def shard(model: nn.Module, device: torch.device) -> Sharded:
    """Divide a model over all processes; each of them has to bring the same weights.

    Args:
        model: The model, views and what else is trained attached.
        device: Where the parts shall lie.
    """
    return Sharded(model, device)


class Sharded:
    """A model whose weights are divided over the processes until `undo`.

    Optimizers and what else refers to parameters is made afterwards; modules stay the same ones.

    Args:
        model: The model.
        device: Where the parts lie.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model = model
        self._classes = {module: type(module) for module in model.modules()}
        attributes = {module: set(vars(module)) for module in model.modules()}
        self._weights = [
            (module, name, weight)
            for module in model.modules()
            for name, weight in module.named_parameters(recurse=False, remove_duplicate=False)
        ]
        single = {weight for _, _, weight in self._weights if weight.dim() == 0}  # which cannot be divided
        for _, _, weight in self._weights:
            weight.data = weight.data.to(device) if weight in single else weight.data.contiguous()
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        for unit in (*units(model), model):
            fully_shard(unit, mesh=mesh, ignored_params=single)
            self._release()  # unit by unit, so that a device never holds the whole model
        self._attributes = {module: set(vars(module)) - before for module, before in attributes.items()}

    @contextmanager
    def assembled(self) -> Iterator[None]:
        """Let each process hold the whole model for a while, with modules as they were before they were divided."""
        parts, put_back = self._assemble()
        try:
            yield
        finally:
            for module, name, part in parts:
                module._parameters[name] = part
            for act in put_back:
                act()
            self._release()

    def undo(self) -> None:
        """Put the weights together for good, each in the parameter it was in before."""
        self._assemble()
        for module in self._classes:
            _module_state_mapping.pop(module, None)  # else it could not be divided again

    @torch.no_grad()
    def _assemble(self) -> tuple[list[tuple[nn.Module, str, nn.Parameter]], list[Callable[[], None]]]:
        """Gather all weights and take off what was put on; returns the parts, and what puts it on again."""
        for module in self._classes:
            if isinstance(module, FSDPModule):
                module.reshard()
        parts: list[tuple[nn.Module, str, nn.Parameter]] = []
        done: set[nn.Parameter] = set()
        for module, name, weight in self._weights:
            part = module._parameters[name]
            if part is None or not is_sharded(part):
                continue
            if weight not in done:  # a shared weight is gathered once
                weight.data = whole(part)
                weight.requires_grad_(part.requires_grad)
                done.add(weight)
            module._parameters[name] = weight
            parts.append((module, name, part))
        return parts, [_take_off(module, own, self._attributes[module]) for module, own in self._classes.items()]

    def _release(self) -> None:
        """Give back the memory of whole weights, of which each process has its part."""
        for module, name, weight in self._weights:
            if is_sharded(module._parameters[name]):
                weight.data = weight.data.new_empty(0)


def _take_off(module: nn.Module, own: type[nn.Module], names: set[str]) -> Callable[[], None]:
    """Make a module the one it was before it was divided; returns what undoes that."""
    divided = type(module)
    attributes = {name: vars(module).pop(name) for name in names if name in vars(module)}
    tables = [vars(module)[name] for name in (*HOOKS, *NOTES) if vars(module).get(name)]
    before = [dict(table) for table in tables]
    taken = {number for name in HOOKS for number, hook in vars(module).get(name, {}).items() if _is_gathering(hook)}
    for table in tables:
        for number in taken:
            table.pop(number, None)
    module.__class__ = own

    def put_on() -> None:
        for table, entries in zip(tables, before, strict=True):
            table.clear()  # their order counts: what gathers weights comes first
            table.update(entries)
        vars(module).update(attributes)
        module.__class__ = divided

    return put_on


def _is_gathering(hook: object) -> bool:
    """Whether PyTorch hung a hook in to gather or divide weights."""
    inner = getattr(hook, "hook", hook)
    return (getattr(inner, "__module__", None) or "").startswith(FSDP)
