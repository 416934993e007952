"""What a run minimises: the extension point of the methods.

A method brings an objective, with or without a teacher, and views on the model; the loop stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Loss:
    """A loss and what it is made of.

    Args:
        total: What is minimised: a mean over the examples of the batch.
        parts: The terms it is made of, for the log.
    """

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """A loss over what a model computes for a batch."""

    def __call__(self, model: nn.Module, inputs: dict[str, Any]) -> Loss:
        """Run the model on a batch, labels included, and return the loss."""
        ...
