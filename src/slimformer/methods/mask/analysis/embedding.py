"""Where texts lie to a model: t-SNE of [CLS] (Fig. 4)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slimformer import artifact, models
from slimformer.inference.source import is_artifact
from slimformer.methods.mask.measuring import Measure
from slimformer.report import Figure, Finding, clouds
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


def cls_map(
    models: Mapping[str, str | Path], data: str | Path, *, split: str = "dev", limit: int = 400, seed: int = 0
) -> Finding[dict[str, Any]]:
    """Lay out the last hidden state of the first token, [CLS] for most encoders, in the plane.

    Args:
        models: Name → artifact or plain base; at least one is an artifact for a task with labels.
        data: The task's data.
        split: Which split.
        limit: How many texts.
        seed: Seed of t-SNE.
    """
    trained = next(folder for folder in models.values() if is_artifact(folder))
    measure = Measure.of(trained, TaskOptions.make({"data": data, "limit": limit}), split)
    labels = [measure.data.labels[example["label"]] for example in measure.data[split]]  # type: ignore[index]
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, folder in models.items():
        places = _plane(_first_tokens(_bare(folder), measure), seed)
        for label, (x, y) in zip(labels, places.tolist(), strict=True):
            panels.setdefault(name, {}).setdefault(label, []).append((x, y))
    groups = {name: dict(sorted(found.items())) for name, found in panels.items()}
    caption = f"t-SNE of the first token's last hidden state, {len(labels)} texts of {split}."
    return Finding({"points": groups}, Figure("Where texts lie", clouds(groups), caption))


def _bare(folder: str | Path) -> nn.Module:
    import transformers

    if is_artifact(folder):
        return artifact.load(Path(folder)).model.base_model
    plain: nn.Module = models.load_model(folder, transformers.AutoModel).eval()
    return plain


@torch.inference_mode()
def _first_tokens(model: nn.Module, measure: Measure) -> np.ndarray[Any, Any]:
    collate = measure.data.collator(measure.processor)
    rows = []
    for start in range(0, len(measure.features), 32):
        batch = collate(measure.features[start : start + 32])
        batch.pop("labels", None)
        rows.append(model(**batch).last_hidden_state[:, 0].float().numpy())
    return np.concatenate(rows)


def _plane(points: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, max(2.0, (len(points) - 1) / 3))
    placed: np.ndarray[Any, Any] = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return placed
