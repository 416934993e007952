"""What further pre-training gains on its domain, what it forgets elsewhere, and how far the weights move."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from slimformer.inference.door import OpenModel
from slimformer.inference.evaluation import evaluate, prepare_split
from slimformer.objectives import RecordedStudent, TermObjective
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from slimformer.methods.adapt.images import Images
    from slimformer.methods.adapt.texts import Texts
    from slimformer.objectives import Weighted
    from slimformer.tasks.features import Collator, Inputs

#: Examples in one forward.
BATCH = 32
#: By how much a correlation with people may fall without a warning.
NOTABLE = 0.01


@torch.no_grad()
def reconstruction_losses(
    model: nn.Module,
    term: Weighted,
    held_out: Mapping[str, Sequence[Inputs]],
    collate: Collator,
    batch_size: int = BATCH,
) -> dict[str, float]:
    """Loss of the reconstruction on each sort of text, without dropout.

    Args:
        model: The model, with its head.
        term: The reconstruction.
        held_out: Examples by name.
        collate: What makes batches of them.
        batch_size: Examples in one forward at most.
    """
    objective = TermObjective([term], model, {})
    training = model.training
    recorded = RecordedStudent(model, [term]).eval()
    device = next(model.parameters()).device
    size, losses = min(BATCH, batch_size), {}
    for name, items in held_out.items():
        total, count = 0.0, 0
        for start in range(0, len(items), size):
            batch = collate([items[index] for index in range(start, min(start + size, len(items)))])
            batch = {key: value.to(device) for key, value in batch.items()}
            texts = objective.counts(batch)[term.label]
            if texts:
                (value,) = objective(recorded, batch).parts.values()
                total, count = total + float(value) * texts, count + texts
        losses[name] = total / max(1, count)
    model.train(training)
    return losses


def similarity(inputs: Texts | Images, model: PreTrainedModel, task: str, data: str) -> float:
    """How well a model's embeddings agree with people, as the task's own metric (Spearman's correlation).

    Args:
        inputs: Base and tokenizer.
        model: The model, with any head.
        task: How the pairs are read.
        data: Where they are.
    """
    opened = OpenModel(inputs.source, model, inputs.processor)
    ready = prepare_split(inputs.source.name, TaskOptions(task=task, data=data), "dev", opened)
    metrics = evaluate(ready.model, ready.data, "dev", ready.features, inputs.processor)
    return metrics[ready.data.primary_metric]


def drift(initial: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> float:
    """How far the weights have moved, as a share of how large they were: ‖θ - θ_init‖ / ‖θ_init‖."""
    moved = size = 0.0
    for name, value in initial.items():
        if value.is_floating_point():
            start = value.cpu().double()  # some accelerators know no such numbers
            moved += float((now[name].detach().cpu().double() - start).square().sum())
            size += float(start.square().sum())
    return math.sqrt(moved / max(size, 1e-30))


def forgetting(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Warnings where less is gained on the domain than is lost on general text, and where similarities suffer."""
    warnings = []
    gained = before["reconstruction"] - after["reconstruction"]
    lost = after.get("general", 0.0) - before.get("general", 0.0)
    if lost > max(gained, 0):
        warnings.append(
            f"the loss on general text rose by {lost:.3f}, and that on the domain went from "
            f"{before['reconstruction']:.3f} to {after['reconstruction']:.3f}: more is forgotten than gained; "
            "take fewer steps or a lower rate"
        )
    if before.get("similarity", 0.0) - after.get("similarity", 0.0) > NOTABLE:
        warnings.append(
            f"the agreement of similarities with people fell from {before['similarity']:.4f} to "
            f"{after['similarity']:.4f}; take fewer steps or a lower rate"
        )
    return warnings
