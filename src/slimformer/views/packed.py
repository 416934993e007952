"""What a weight is packed as, kept on its module beside the float weight that is, bit for bit, codes times scales.

A model that was quantized or loaded packed computes with floats. The packed form is a sixteenth of their size and stays
with them, so that it can be saved and exported as it is, and cut where the weight is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from slimformer.formats import PackedWeight

_PACKED = "_slimformer_packed"
#: The smaller type a float that is not packed is stored in.
SMALL_FLOAT = torch.float16


@runtime_checkable
class IsPacked(Protocol):
    """A weight that is held packed itself, in the place of a float one."""

    def packed_like(self, noted: PackedWeight) -> PackedWeight:
        """What it is packed as: the kind of weight that was noted, with the codes and scales that it has now."""


def packed_of(module: nn.Module) -> PackedWeight | None:
    """What the weight of a module is packed as; None where it is not.

    Raises:
        FormatError: Where the module was given a weight that is packed in another way than was noted.
    """
    noted: PackedWeight | None = module.__dict__.get(_PACKED)
    weight = module._parameters.get("weight")
    # A state that was loaded later has other codes and other scales.
    return noted if noted is None or not isinstance(weight, IsPacked) else weight.packed_like(noted)


def set_packed(module: nn.Module, packed: PackedWeight) -> None:
    """Note what the weight of a module, which already computes with it, is packed as."""
    module.__dict__[_PACKED] = packed


def packed_weights(model: nn.Module) -> dict[str, PackedWeight]:
    """The packed weights of a model by the names they have in its state; empty where it has none."""
    packed = ((path, packed_of(module)) for path, module in model.named_modules())
    return {f"{path}.weight" if path else "weight": weight for path, weight in packed if weight is not None}


def forget_packed(model: nn.Module) -> None:
    """Let a model be a float one."""
    for module in model.modules():
        module.__dict__.pop(_PACKED, None)


def small_float(tensor: Tensor) -> Tensor:
    """A tensor in the smaller type, where nothing is lost by it; else as it is."""
    small = fits_small_float(tensor) and torch.equal(tensor.to(SMALL_FLOAT).to(tensor.dtype), tensor)
    return tensor.to(SMALL_FLOAT) if small else tensor


def fits_small_float(tensor: Tensor) -> bool:
    """Whether a tensor is of a longer float type and within the range of the small one."""
    longer = tensor.is_floating_point() and tensor.element_size() > torch.finfo(SMALL_FLOAT).bits // 8
    return longer and bool((tensor.detach().abs() <= torch.finfo(SMALL_FLOAT).max).all())
