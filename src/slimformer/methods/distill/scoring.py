"""How good a student is before anything is fine-tuned: what trials are judged by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from slimformer.methods.distill.watching import Watched
from slimformer.tasks.metrics.regression import regression_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel

    from slimformer.tasks import TaskData

    Array = np.ndarray[Any, Any]
    Probed = Literal["classes", "numbers"]
    Collate = Callable[[Any], dict[str, Any]]


@torch.no_grad()
def embed(
    model: PreTrainedModel,
    items: Sequence[Any],
    collate: Collate,
    pooling: str | Sequence[str] = "mean",
    batch_size: int = 32,
) -> Array:
    """Pooled outputs of a base model for each item; labels among the inputs are left out."""
    was_training = model.training
    watched = Watched(model, -1, ("pooled",), pooling).eval()
    device = next(model.parameters()).device
    found = []
    for start in range(0, len(items), batch_size):
        batch = collate([items[index] for index in range(start, min(start + batch_size, len(items)))])
        inputs = {name: value.to(device) for name, value in batch.items() if name != "labels"}
        found.append(watched(**inputs)["pooled"].float().cpu().numpy())
    model.train(was_training)
    return np.concatenate(found)


def kept_similarity(teacher: Array, student: Array) -> float:
    """Rank correlation of all pairwise cosine similarities in the student's space with those in the teacher's.

    Args:
        teacher: Embeddings of some texts, [texts, width].
        student: The student's embeddings of the same texts.
    """
    upper = np.triu_indices(len(teacher), k=1)
    similarities = [(unit @ unit.T)[upper] for unit in map(_unit, (teacher, student))]
    return _spearman(*similarities)


def probe_labels(embeddings: dict[str, Array], labels: dict[str, Array], predicts: Probed) -> float:
    """Score of a linear model on embeddings: accuracy on dev for classes, rank correlation for numbers.

    Args:
        embeddings: Those of `train` and `dev`.
        labels: The labels of both.
        predicts: What the labels are.
    """
    from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

    regression = predicts == "numbers"
    model = make_pipeline(StandardScaler(), Ridge() if regression else LogisticRegression(max_iter=1000))
    model.fit(embeddings["train"], labels["train"])
    if regression:
        return _spearman(labels["dev"], model.predict(embeddings["dev"]))
    return float(model.score(embeddings["dev"], labels["dev"]))


def score_on_task(model: PreTrainedModel, data: TaskData, processor: Any, length: int | None, seed: int) -> float:
    """Score of a linear model on a base model's embeddings of a task's texts."""
    embeddings, labels = {}, {}
    for split in ("train", "dev"):
        features = data.prepare(split, processor, length, seed)
        items = [features[index] for index in range(len(features))]
        embeddings[split] = embed(model, items, data.collator(processor))
        labels[split] = np.array([item["labels"] for item in items])
    assert data.kind.linear_probe is not None
    return probe_labels(embeddings, labels, data.kind.linear_probe)


def _spearman(truth: Array, found: Array) -> float:
    return regression_metrics(truth, found, ("spearman",))["spearman"]


def _unit(vectors: Array) -> Array:
    unit: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit
