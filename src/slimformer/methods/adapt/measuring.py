"""What further pre-training gains on its domain, what it forgets elsewhere, and how far the weights move."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from slimformer.objectives import RecordedStudent, TermObjective

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from slimformer.objectives import Weighted
    from slimformer.tasks.features import Collator, Inputs

#: Examples in one forward.
BATCH = 32


@torch.no_grad()
def reconstruction_losses(
    model: nn.Module, term: Weighted, held_out: Mapping[str, Sequence[Inputs]], collate: Collator
) -> dict[str, float]:
    """Loss of the reconstruction on each sort of text, without dropout.

    Args:
        model: The model, with its head.
        term: The reconstruction.
        held_out: Examples by name.
        collate: What makes batches of them.
    """
    objective = TermObjective([term], model, {})
    training = model.training
    recorded = RecordedStudent(model, [term]).eval()
    device = next(model.parameters()).device
    losses = {}
    for name, items in held_out.items():
        total, count = 0.0, 0
        for start in range(0, len(items), BATCH):
            batch = collate([items[index] for index in range(start, min(start + BATCH, len(items)))])
            batch = {key: value.to(device) for key, value in batch.items()}
            texts = objective.counts(batch)[term.label]
            if texts:
                (value,) = objective(recorded, batch).parts.values()
                total, count = total + float(value) * texts, count + texts
        losses[name] = total / max(1, count)
    model.train(training)
    return losses


def drift(initial: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> float:
    """How far the weights have moved, as a share of how large they were: ‖θ - θ_init‖ / ‖θ_init‖."""
    moved = sum(float((now[name].double() - value.double()).square().sum()) for name, value in _floats(initial))
    size = sum(float(value.double().square().sum()) for _, value in _floats(initial))
    return math.sqrt(moved / max(size, 1e-30))


def forgetting(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """A warning where less is gained on the domain than is lost on general text."""
    if "general" not in before:
        return []
    gained = before["reconstruction"] - after["reconstruction"]
    lost = after["general"] - before["general"]
    if lost <= max(gained, 0):
        return []
    return [
        f"the loss on general text rose by {lost:.3f} and that on the domain fell by {gained:.3f}: more is forgotten "
        "than gained; take fewer steps, a lower rate or more rounds"
    ]


def _floats(weights: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in weights.items() if value.is_floating_point()]
