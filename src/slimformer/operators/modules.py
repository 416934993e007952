"""Modules whose packed weight is multiplied by an operator where it can be, and as before everywhere else.

They are `nn.Linear` and `Conv1D` in all but their forward. They know how their input is rounded, since the operator
does that itself; a hook would have done it before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from slimformer.operators.tensor import PackedTensor
from slimformer.views.rounding import Rounding, RoundsInput

if TYPE_CHECKING:
    from collections.abc import Callable

#: The rounding of activations that the operators do.
ROUNDING = Rounding(bits=8, per="token", clip=None, symmetric=True)


def _forward(module: Any, x: Tensor, forward: Callable[[Tensor], Tensor]) -> Tensor:
    rounding: Rounding | None = module.input_rounding
    if rounding is None:
        return forward(x)
    if module.by_operator and rounding == ROUNDING and runs_packed(module.weight, x):
        return cast("PackedTensor", module.weight).product(x, module.bias)
    return forward(rounding(x))


def runs_packed(weight: Any, x: Tensor) -> bool:
    """Whether an operator multiplies a weight with an input."""
    if not isinstance(weight, PackedTensor) or weight.expanded is not None or x.device.type != "cpu":
        return False
    # A gradient of the weight is one of floats.
    return x.dtype in _TYPES and not (weight.requires_grad and torch.is_grad_enabled())


_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class PackedLinear(RoundsInput, nn.Linear):
    """An `nn.Linear` that rounds its input and multiplies it with a packed weight by an operator."""

    def forward(self, input: Tensor) -> Tensor:
        """The product."""
        return _forward(self, input, super().forward)


class PackedConv1D(RoundsInput, Conv1D):
    """The same for the linear layer of GPT-2, whose weight is stored as [in, out]."""

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        return _forward(self, x, super().forward)


#: What takes the place of which module.
CLASSES: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: PackedLinear, Conv1D: PackedConv1D}
