"""How models trained on one data set do on others of the same kind (Table 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.inference.evaluation import evaluate_on_task
from slimformer.methods.mask.measuring import Measure
from slimformer.report import Figure, Finding, bars
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The row of the baseline.
MAJORITY = "majority"


def cross_data(
    models: Mapping[str, str | Path],
    data: Mapping[str, str | Path],
    *,
    split: str = "dev",
    limit: int | None = None,
) -> Finding[dict[str, Any]]:
    """Measure every model on every data set, beside the answer that is always the most frequent label of the split.

    A model that has learned nothing that carries over is not above that baseline, which the paper's table shows too.
    Kinds of task whose examples have no single label have none.

    Args:
        models: Name → artifact.
        data: Task → its data; the tasks have the labels the models know.
        split: Which split.
        limit: Use only so many rows.
    """
    scores: dict[str, dict[str, float]] = {}
    metric = ""
    for task, source in data.items():
        options = TaskOptions.make({"task": task, "data": source, **({} if limit is None else {"limit": limit})})
        for name, folder in models.items():
            measured = evaluate_on_task(folder, options, split)["metrics"]
            metric = next(iter(measured))
            scores.setdefault(name, {})[task] = 100 * measured[metric]
        baseline = majority_score(Measure.of(next(iter(models.values())), options, split))
        if baseline is not None:
            scores.setdefault(MAJORITY, {})[task] = 100 * baseline
    rows = {name: scores[name] for name in (*models, MAJORITY) if name in scores}
    figure = Figure("On other data", bars(rows, f"{metric} x 100"), f"Each model on {split} of each data set.")
    return Finding({"metric": metric, "scores": rows}, figure)


def majority_score(measure: Measure) -> float | None:
    """The metric that counts, of always giving the most frequent label; None where examples have no single label."""
    labels = measure.data.labels
    examples = list(measure.data[measure.split])
    if labels is None or not all(isinstance(example.get("label"), int) for example in examples):
        return None
    counts = np.bincount([example["label"] for example in examples], minlength=len(labels))
    always = np.tile(np.eye(len(labels))[counts.argmax()], (len(examples), 1))
    return measure.score(always)[measure.metric]
