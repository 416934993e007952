"""Predicted numbers, and likelihoods of tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.models import IGNORED
from slimformer.tasks.metrics.chosen import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def regression_metrics(truth: NDArray[Any], predicted: NDArray[Any], metrics: Sequence[str]) -> dict[str, float]:
    """Measure predicted numbers; a correlation with a constant is 0 here, where mathematics leaves it undefined."""
    from scipy.stats import pearsonr, spearmanr

    flat = len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(predicted) == 0
    known: dict[str, Callable[[], float]] = {
        "pearson": lambda: 0.0 if flat else pearsonr(truth, predicted).statistic,
        "spearman": lambda: 0.0 if flat else spearmanr(truth, predicted).statistic,
        "mean_squared_error": lambda: np.mean((truth - predicted) ** 2),
    }
    return chosen(known, metrics)


def reduce_logits(logits: Any, labels: Any, *, causal: bool) -> Any:
    """Reduce the logits of a batch to [batch, 3]; a causal model's logits speak of the next token.

    Args:
        logits: [batch, length, vocabulary], in NumPy or in torch.
        labels: [batch, length], in the same.
        causal: Whether position n speaks of token n + 1.
    """
    if causal:
        logits, labels = logits[:, :-1], labels[:, 1:]
    counted = labels != IGNORED
    if isinstance(logits, np.ndarray):
        wide = logits.astype(np.float32)
        shifted = wide - wide.max(-1, keepdims=True)
        total = np.log(np.exp(shifted).sum(-1))
        chosen_logits = np.take_along_axis(shifted, np.where(counted, labels, 0)[..., None], -1)[..., 0]
        losses = np.where(counted, total - chosen_logits, 0)
        right = (logits.argmax(-1) == labels) & counted
        return np.stack([losses.sum(-1), counted.sum(-1), right.sum(-1)], axis=-1).astype(np.float32)
    import torch
    from torch.nn.functional import cross_entropy

    nll = cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    right = (logits.argmax(-1) == labels) & counted
    return torch.stack([nll.sum(-1), counted.sum(-1).float(), right.sum(-1).float()], dim=-1)


def likelihood_metrics(reduced: Any, metrics: Sequence[str]) -> dict[str, float]:
    """Measure reduced predictions.

    `loss` is the mean over all tokens predicted, not over items, so it does not depend on the batch size.
    """
    rows = np.asarray(reduced, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise DataError(
            f"predictions of shape `{rows.shape}` are not reduced; "
            "pass each batch's logits and labels through `TaskData.outputs`"
        )
    nll, tokens, right = rows.sum(0)
    if tokens == 0:
        raise DataError("no token was predicted; give longer texts")
    some = rows[:, 1] > 0
    known: dict[str, Callable[[], float]] = {
        "loss": lambda: nll / tokens,
        "perplexity": lambda: math.exp(min(nll / tokens, 700.0)),
        "accuracy": lambda: right / tokens,
        "last_word_accuracy": lambda: np.mean(rows[some, 2] == rows[some, 1]),
    }
    return chosen(known, metrics)
