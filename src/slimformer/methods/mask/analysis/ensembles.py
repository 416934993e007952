"""Ensembles of masks beside ensembles of fine-tuned models: what they reach and what they take (Table 2)."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from slimformer.methods.mask.ensemble import ensemble
from slimformer.report import Figure, Finding, bars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def compare_ensembles(
    groups: Mapping[str, Sequence[str | Path]],
    data: str | Path,
    *,
    choose_on: str = "dev",
    split: str = "dev",
    **options: Any,
) -> Finding[dict[str, Any]]:
    """Measure several ensembles of one task, each combined in the way that is best for it on `choose_on`.

    Args:
        groups: Name of an ensemble → its members, such as masks of four seeds and fine-tuned models of four seeds.
        data: The task's data.
        choose_on: The split on which the way to combine is chosen.
        split: The split to measure on.
        options: Fields of `TaskOptions`, where they differ from what the members were trained with.
    """
    rows: dict[str, dict[str, Any]] = {}
    metric = ""
    for name, folders in groups.items():
        result = ensemble(folders, data, choose_on=choose_on, split=split, **options)
        metric = result.metric
        rows[name] = {
            "members": result.members,
            "mean": statistics.mean(result.members),
            "ensemble": result.metrics[metric],
            "how": result.how,
            "bytes": result.bytes,
        }
    heights = {name: {"one member": 100 * row["mean"], "all": 100 * row["ensemble"]} for name, row in rows.items()}
    sizes = ", ".join(f"{name} {row['bytes'] / 2**20:.0f} MiB" for name, row in rows.items())
    figure = Figure("Ensembles", bars(heights, f"{metric} x 100"), f"Mean of the members and all together: {sizes}.")
    return Finding({"metric": metric, "split": split, "ensembles": rows}, figure)
