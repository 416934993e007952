"""Layers that compute with another weight than they hold, made each time it is needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimformer.bank.sharing import clone

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    #: Makes a weight of another one, in the tensor given.
    Shown = Callable[[Tensor, Tensor], Tensor]

_SHOWN = "_slimformer_shown"
_thread = threading.local()
_classes: dict[Any, type[nn.Module]] = {}


def showing(module: nn.Module, shown: Shown) -> nn.Module:
    """A copy of a layer that shares its tensors and computes with what `shown` makes of its weight.

    Its forward is the layer's own, so it computes what the layer with that weight would.
    """
    copied: nn.Module = clone(module)
    copied.__dict__[_SHOWN] = shown
    copied.__class__ = _class(type(module))
    return copied


def scratch(like: Tensor) -> Tensor:
    """A place to compute a weight in, of this thread alone and good until it asks for the next.

    Memory that is taken anew for every weight costs several times what the computing does.
    """
    places: dict[tuple[torch.dtype, torch.device], Tensor] = _thread.__dict__.setdefault("places", {})
    key = (like.dtype, like.device)
    if key not in places or places[key].numel() < like.numel():
        with torch.inference_mode(False):
            places[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    return places[key][: like.numel()].view(like.shape)


def _class(kind: type[nn.Module]) -> type[nn.Module]:
    if kind not in _classes:
        _classes[kind] = _make_class(kind)
    return _classes[kind]


def _make_class(kind: type[nn.Module]) -> type[nn.Module]:
    def weight(self: Any) -> Tensor:
        stored = self._parameters["weight"]
        # During the layer's own forward the weight is used at once; whoever else asks gets one to keep.
        place = scratch(stored) if _thread.__dict__.get("running") is self else torch.empty_like(stored)
        made: Tensor = self.__dict__[_SHOWN](stored, place)
        return made

    def forward(self: Any, *inputs: Any) -> Any:
        _thread.running = self
        try:
            return kind.forward(self, *inputs)
        finally:
            _thread.running = None

    return type(f"Showing{kind.__name__}", (kind,), {"weight": property(weight), "forward": forward})
