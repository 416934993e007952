"""What a run minimises: the extension point of the methods.

A method brings an objective, with or without a teacher, and views on the model; the loop stays the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from slimformer.objectives import Loss


class Objective(Protocol):
    """A loss over what a model computes for a batch: a mean over its examples."""

    def __call__(self, model: nn.Module, inputs: dict[str, Any]) -> Loss:
        """Run the model on a batch, labels included, and return the loss."""
        ...


@runtime_checkable
class SteppedObjective(Objective, Protocol):
    """An objective that changes from step to step, however many parts a batch has."""

    def begin(self, step: int) -> None:
        """Let an optimizer step begin, counted from 0; called once, before its first part."""
        ...


@runtime_checkable
class CountedObjective(Objective, Protocol):
    """A sum of means, each over items of its own, such as `slimformer.objectives.TermObjective`."""

    def counts(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """How many items of a batch each mean is over, by name."""
        ...

    def __call__(self, model: nn.Module, inputs: dict[str, Any], totals: Mapping[str, float] | None = None) -> Loss:
        """Run the model on a part of a batch and return its share of the loss.

        Args:
            model: The model, wrapped or not.
            inputs: The part.
            totals: Items of the whole batch by name, mean over processes; None where the part is the whole.
        """
        ...
