"""How models trained on one data set do on others of the same kind (Table 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.inference.evaluation import evaluate_on_task
from slimformer.report import Figure, Finding, bars
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def cross_data(
    models: Mapping[str, str | Path],
    data: Mapping[str, str | Path],
    *,
    split: str = "dev",
    limit: int | None = None,
) -> Finding[dict[str, Any]]:
    """Measure every model on every data set.

    Args:
        models: Name → artifact.
        data: Task → its data; the tasks have the labels the models know.
        split: Which split.
        limit: Use only so many rows.
    """
    scores: dict[str, dict[str, float]] = {}
    metric = ""
    for name, folder in models.items():
        for task, source in data.items():
            given = {"task": task, "data": source, **({} if limit is None else {"limit": limit})}
            found = evaluate_on_task(folder, TaskOptions.make(given), split)["metrics"]
            metric = next(iter(found))
            scores.setdefault(name, {})[task] = 100 * found[metric]
    figure = Figure("On other data", bars(scores, f"{metric} x 100"), f"Each model on {split} of each data set.")
    return Finding({"metric": metric, "scores": scores}, figure)
