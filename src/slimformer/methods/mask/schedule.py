"""Moving masks on that change their nature while they are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.train import Loss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from slimformer.views import ScheduledMask


class Scheduled:
    """The task's own loss, counting the steps the schedules depend on.

    Args:
        masks: The masks to move on.
        steps: Steps until they are where they shall be.
        parts: Times the objective is asked in a step.
    """

    def __init__(self, masks: Sequence[ScheduledMask], steps: int, parts: int) -> None:
        self.masks = masks
        self.share = 1 / (steps * parts)

    def __call__(self, model: nn.Module, inputs: dict[str, Any]) -> Loss:
        """The loss of the model's head."""
        loss: Tensor = model(**inputs).loss
        for mask in self.masks:
            # Lies in the checkpoints with the scores, so that a resumed run goes on where it was.
            mask.progress.add_(self.share).clamp_(max=1)
        return Loss(loss)
