"""Copies of a model that share its tensors: what is done to their modules does not show in the original."""

from __future__ import annotations

from collections import OrderedDict
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from slimformer.anatomy import unwrap
from slimformer.views.slice import settle
from slimformer.views.stack import attached
from slimformer.views.width import Width

if TYPE_CHECKING:
    from collections.abc import Mapping


def clone(module: nn.Module, replaced: Mapping[str, nn.Module] | None = None, path: str = "") -> Any:
    """A copy of a module tree that shares every tensor; modules named in `replaced` are put in place of the old ones.

    What is done to the modules of the copy does not show in the original.
    """
    if replaced and path in replaced:
        return replaced[path]
    if isinstance(module, Width):
        return module  # a `with` block knows it by what it is
    copied = module.__class__.__new__(module.__class__)
    copied.__dict__ = {name: _own(value, module, copied) for name, value in module.__dict__.items()}
    copied._parameters = dict(module._parameters)
    copied._buffers = dict(module._buffers)
    copied._modules = {
        name: None if child is None else clone(child, replaced, f"{path}.{name}" if path else name)
        for name, child in module._modules.items()
    }
    return copied


def _own(value: Any, module: nn.Module, copied: nn.Module) -> Any:
    """An attribute as a copy holds it: hooks in a mapping of its own, methods put on one instance bound to the copy.

    Mixed precision puts such a `forward` on a model, which would otherwise compute with the modules of the original.
    """
    if isinstance(value, MethodType) and value.__self__ is module:
        return MethodType(value.__func__, copied)
    return value.copy() if isinstance(value, OrderedDict) else value


@torch.no_grad()
def snapshot(model: nn.Module) -> Any:
    """A copy in evaluation mode whose weights are what views show here and now, computed once.

    All else is shared with the model, which is not touched: whatever becomes of it, and of its widths in other
    threads, the copy computes the same until its tensors are changed in place.
    """
    copied: nn.Module = clone(unwrap(model)).eval()
    viewed = {id(at.module): at.module for at in attached(copied)}.values()
    values = [(module, _shown(module)) for module in viewed]
    for module in copied.modules():
        settle(module)
    for module, tensors in values:
        module.__class__ = type(module).__bases__[0]
        del module._modules["parametrizations"]
        for name, value in tensors.items():
            module._parameters[name] = nn.Parameter(value, requires_grad=False)
    return copied


def _shown(module: nn.Module) -> dict[str, torch.Tensor]:
    names = list(module.parametrizations) if parametrize.is_parametrized(module) else []  # type: ignore[arg-type]
    return {name: getattr(module, name).detach() for name in names}
