"""The matrices of a model as rows of one output each, however a module keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

#: Modules whose weights have an output at index 0 and all its inputs behind it.
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class WeightMatrix:
    """A parameter of more than one dimension, and how it is read as rows of one output each.

    Args:
        module: The module it belongs to.
        weight: The parameter.
    """

    def __init__(self, module: nn.Module, weight: nn.Parameter) -> None:
        self.module = module
        self.weight = weight

    def rows(self, tensor: Tensor | None = None) -> Tensor:
        """The parameter, or a tensor of its shape, as [rows, columns]; a view, wherever it lies."""
        tensor = self.weight if tensor is None else tensor
        if isinstance(self.module, Conv1D):  # GPT-2 keeps inputs first
            return tensor.mT
        if isinstance(self.module, CONVOLUTIONS):
            return tensor.view(len(tensor), -1)
        # Rows of a table are those of one token or position, however many axes stand before.
        return tensor.view(-1, tensor.shape[-1])


def matrices(model: nn.Module) -> Iterator[tuple[str, WeightMatrix]]:
    """All matrices of a model that are trained, by the names of their parameters; one that is shared comes once."""
    owners = {
        f"{prefix}.{name}".lstrip("."): module
        for prefix, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and weight.requires_grad:
            yield name, WeightMatrix(owners[name], weight)
