"""Which weights of a model run packed, and how they become floats again."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slimformer.errors import FormatError
from slimformer.operators.modules import CLASSES, ROUNDING
from slimformer.operators.panels import panels_of, refusal
from slimformer.operators.tensor import PackedTensor
from slimformer.runtime.native import absence
from slimformer.views.packed import packed_of, set_packed
from slimformer.views.rounding import RoundsInput

if TYPE_CHECKING:
    from slimformer.formats import PackedWeight

_logger = logging.getLogger("slimformer.operators")


@torch.no_grad()
def hold_packed(packed: PackedWeight, dtype: torch.dtype) -> tuple[PackedWeight, Tensor] | None:
    """A packed weight as the kernels read it, with the tensor that computes with it; None where they do not read it.

    The first holds the memory of the second, so that there is one copy of the codes.
    """
    if not dtype.is_floating_point or refusal(packed) is not None:
        return None
    reason = absence()
    if reason is not None:
        _tell_expanded(reason)
        return None
    panels = panels_of(packed)
    # Whoever asks for its gradient gets it, and floats with it; a forward alone is to need neither.
    weight = nn.Parameter(PackedTensor.of(panels, packed.transposed, dtype), requires_grad=False)
    return replace(packed, held=panels), weight


@cache  # a line for a process, not for each weight
def _tell_expanded(reason: str) -> None:
    _logger.warning("packed weights are expanded to floats: %s", reason)


def give_operators(model: nn.Module) -> None:
    """Let modules with a packed weight compute by the operators; how their inputs are rounded is still to be said."""
    for module in model.modules():
        own = CLASSES.get(type(module))
        if own is not None and isinstance(module._parameters.get("weight"), PackedTensor):
            module.__class__ = own


def expand_others(model: nn.Module) -> None:
    """Expand the packed weights that some module would have to expand at each call."""
    unserved = (weight_of(module) for module in model.modules() if not _is_served(module))
    _expand(model, {id(weight) for weight in unserved})


@torch.no_grad()
def expand(model: nn.Module) -> nn.Module:
    """Make floats of all packed weights of a model; what they are packed as is still known for saving.

    Modules get parameters of their own, so that a copy that shares tensors with a model can be expanded alone.
    """
    _expand(model, {id(weight_of(module)) for module in model.modules()})
    return model


def without_tied(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The state of a model with one name for each tied weight, the one that Transformers keeps."""
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    transformer: Any = model
    # Tensors are told apart by their memory.
    memory = {name: each.panels if isinstance(each, PackedTensor) else each for name, each in state.items()}
    kept: dict[str, Tensor] = remove_tied_weights_from_state_dict(memory, transformer)
    return {name: state[name] if isinstance(state[name], PackedTensor) else each for name, each in kept.items()}


def weight_of(module: nn.Module) -> PackedTensor | None:
    """The weight of a module, where it is held packed."""
    weight = module._parameters.get("weight")
    return weight if isinstance(weight, PackedTensor) else None


def _is_served(module: nn.Module) -> bool:
    """Whether a module leaves its weight packed."""
    if weight_of(module) is None or isinstance(module, nn.Embedding):
        return True
    return isinstance(module, RoundsInput) and module.input_rounding == ROUNDING


@torch.no_grad()
def _expand(model: nn.Module, chosen: set[int]) -> None:
    """Expand the chosen weights; modules that share one go on sharing it."""
    floats: dict[int, nn.Parameter] = {}
    for module in model.modules():
        weight = weight_of(module)
        if weight is None or id(weight) not in chosen:
            continue
        if id(weight) not in floats:
            floats[id(weight)] = nn.Parameter(weight.dequantize(), requires_grad=weight.requires_grad)
        with suppress(FormatError):  # then saving finds that the floats are not those of what was noted
            packed = packed_of(module)
            if packed is not None:
                set_packed(module, packed)
        module._parameters["weight"] = floats[id(weight)]
