"""Moving masks on that change their nature while they are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.train import Loss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from slimformer.views import ScheduledMask


class Scheduled:
    """The task's own loss, with schedules that follow the steps.

    Args:
        masks: The masks to move on.
        steps: Steps until they are where they shall be.
    """

    def __init__(self, masks: Sequence[ScheduledMask], steps: int) -> None:
        self.masks = masks
        self.steps = steps

    def begin(self, step: int) -> None:
        """Move on before a step, counted from 0, so that all parts of its batch meet the same masks."""
        for mask in self.masks:
            mask.progress.fill_(min(1.0, step / self.steps))

    def __call__(self, model: nn.Module, inputs: dict[str, Any]) -> Loss:
        """The loss of the model's head."""
        loss: Tensor = model(**inputs).loss
        return Loss(loss)
