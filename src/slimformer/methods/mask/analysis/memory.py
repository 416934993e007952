"""What many tasks take: copies, masks and adapters, in parameters (Fig. 3a) and in bytes (Fig. 3b)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.methods.mask.config import MaskConfig
from slimformer.methods.mask.scores import choose
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FLOAT = 4


def memory_report(
    base: str | Path, tasks: Sequence[int] = tuple(range(1, 21)), *, labels: int = 2, rank: int = 8, **settings: Any
) -> Finding[dict[str, Any]]:
    """Count parameters and bytes of n tasks by fine-tuning, by masks and by LoRA; no weights are loaded.

    Fine-tuning keeps a whole model for each task. Masks keep the base, and for each task one bit per masked weight and
    a head in floats; a bit counts as a parameter, as in Fig. 3a of arXiv 2004.12406, so that a mask has about as many
    of them as a copy of its matrices and takes a thirtieth of the bytes. LoRA keeps the base, and for each task two
    thin matrices for each query and value projection (PEFT's choice for encoders) and a head.

    Args:
        base: An alias, a folder or a Hub name.
        tasks: Numbers of tasks.
        labels: Labels of each task.
        rank: Rank of the adapters.
        settings: Fields of `MaskConfig` that say what is masked.
    """
    skeleton = models.load_skeleton(base)
    anatomy = Anatomy.of(skeleton)
    model = sum(parameter.numel() for parameter in skeleton.parameters())
    head = labels * (anatomy.hidden + 1)
    places = choose(skeleton, MaskConfig.make(settings))
    bits = sum(place.matrix.shape[0] * place.matrix.shape[1] for place in places)
    thin = sum(sum(matrix.shape) for block in anatomy.blocks for matrix in (block.query, block.value))
    counts = {"fine-tuning": model + head, "mask": bits + head, "LoRA": rank * thin + head}
    sizes = {**{name: FLOAT * count for name, count in counts.items()}, "mask": -(-bits // 8) + FLOAT * head}
    parameters, memory = _totals(counts, model, tasks), _totals(sizes, FLOAT * model, tasks)
    panels = [
        ("million parameters in all", _lines(parameters, tasks, 1e6)),
        ("MiB in all", _lines(memory, tasks, 2**20)),
    ]
    data = {
        "base": str(base),
        "masked_weights": bits,
        "rank": rank,
        "parameters_per_task": counts,
        "parameters": parameters,
        "bytes_per_task": sizes,
        "bytes": memory,
    }
    caption = f"Weights of {base} for n tasks of {labels} labels; a LoRA of rank {rank} on queries and values."
    return Finding(data, Figure("Memory for many tasks", curves(panels, x_label="tasks"), caption))


def _totals(per_task: Mapping[str, int], base: int, tasks: Sequence[int]) -> dict[str, dict[str, int]]:
    """What n tasks take in all: a copy each, or the base once and something on top for each."""
    shared = {name: 0 if name == "fine-tuning" else base for name in per_task}
    return {name: {str(count): shared[name] + count * per_task[name] for count in tasks} for name in per_task}


def _lines(totals: Mapping[str, Mapping[str, int]], tasks: Sequence[int], unit: float) -> list[Series]:
    places = [float(count) for count in tasks]
    return [Series(name, places, [total / unit for total in each.values()]) for name, each in totals.items()]
