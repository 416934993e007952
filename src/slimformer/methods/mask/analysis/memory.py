"""What many tasks take: copies, masks and adapters (Fig. 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.methods.mask.config import MaskConfig
from slimformer.methods.mask.scores import choose
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FLOAT = 4


def memory_report(
    base: str | Path, tasks: Sequence[int] = tuple(range(1, 21)), *, labels: int = 2, rank: int = 8, **settings: Any
) -> Finding[dict[str, Any]]:
    """Count the bytes of n tasks by fine-tuning, by masks and by LoRA; no weights are loaded.

    Fine-tuning keeps a whole model for each task. Masks keep the base, and for each task one bit per masked weight and
    a head in floats. LoRA keeps the base, and for each task two thin matrices for each query and value projection
    (PEFT's choice for encoders) and a head.

    Args:
        base: An alias, a folder or a Hub name.
        tasks: Numbers of tasks.
        labels: Labels of each task.
        rank: Rank of the adapters.
        settings: Fields of `MaskConfig` that say what is masked.
    """
    skeleton = models.load_skeleton(base)
    anatomy = Anatomy.of(skeleton)
    model = FLOAT * sum(parameter.numel() for parameter in skeleton.parameters())
    head = FLOAT * labels * (anatomy.hidden + 1)
    places = choose(skeleton, MaskConfig.make(settings))
    bits = sum(place.matrix.shape[0] * place.matrix.shape[1] for place in places)
    thin = sum(sum(matrix.shape) for block in anatomy.blocks for matrix in (block.query, block.value))
    per_task = {"fine-tuning": model + head, "mask": -(-bits // 8) + head, "LoRA": FLOAT * rank * thin + head}
    shared = {"fine-tuning": 0, "mask": model, "LoRA": model}
    totals = {name: {str(count): shared[name] + count * per_task[name] for count in tasks} for name in per_task}
    lines = [
        Series(name, [float(c) for c in tasks], [n / 2**20 for n in found.values()]) for name, found in totals.items()
    ]
    svg = curves([("MiB in all", lines)], x_label="tasks")
    data = {"base": str(base), "masked_weights": bits, "rank": rank, "bytes_per_task": per_task, "bytes": totals}
    caption = f"Weights of {base} for n tasks of {labels} labels; a LoRA of rank {rank} on queries and values."
    return Finding(data, Figure("Memory for many tasks", svg, caption))
