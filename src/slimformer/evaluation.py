"""Running a model over a split and measuring what comes out; the same code during and after training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from slimformer.tasks import TaskData
    from slimformer.tasks.features import Features

#: What stands in places of the outputs that belong to padding.
PADDING = -100.0


def evaluate(
    model: nn.Module, data: TaskData, split: str, features: Features, processor: Any, batch_size: int = 32
) -> dict[str, float]:
    """Measure a model on a prepared split; its training mode is the same afterwards.

    Args:
        model: A model with the head the task needs.
        data: The task's data.
        split: Which split.
        features: What `data.prepare` gave for it.
        processor: The tokenizer or image processor the features were made with.
        batch_size: Items per forward; changes speed and memory only.
    """
    return data.compute_metrics(split, features, predict(model, data, features, processor, batch_size))


@torch.inference_mode()
def predict(model: nn.Module, data: TaskData, features: Features, processor: Any, batch_size: int = 32) -> Any:
    """A model's outputs for every item in order: an array, or a tuple of arrays.

    Items run in the order of their length, which spares most of the padding.
    """
    collate = data.collator(processor)
    order = np.argsort([-item_length(features[index]) for index in range(len(features))], kind="stable").tolist()
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    batches = []
    try:
        # Weights seen through views are the same for every batch, so they are computed once.
        with parametrize.cached():
            for start in range(0, len(order), batch_size):
                batch = collate([features[index] for index in order[start : start + batch_size]])
                batch = {name: value.to(device) for name, value in batch.items()}
                batches.append(_arrays(data, model(**batch), batch))
    finally:
        model.train(was_training)
    back = np.argsort(order)
    joined = tuple(_join([batch[part] for batch in batches])[back] for part in range(len(batches[0])))
    return joined if len(joined) > 1 else joined[0]


def item_length(item: Mapping[str, Any]) -> int:
    """Tokens of an item, the longest choice counting where there are several; 0 for images."""
    ids = item.get("input_ids")
    if ids is None:
        return 0
    first = ids[0] if len(ids) else 0
    return max(len(choice) for choice in ids) if np.ndim(first) else len(ids)


def _arrays(data: TaskData, outputs: Any, batch: Mapping[str, Tensor]) -> tuple[np.ndarray[Any, Any], ...]:
    if data.kind == "question-answering":
        found: tuple[Tensor, ...] = (outputs.start_logits, outputs.end_logits)
    elif data.behaviour.head == "AutoModel":
        found = (mean_embedding(outputs.last_hidden_state, batch.get("attention_mask")),)
    else:
        found = (data.reduce(outputs.logits, batch.get("labels")),)
    return tuple(tensor.float().cpu().numpy() for tensor in found)


def mean_embedding(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean of the hidden states of real tokens: [batch, length, width] → [batch, width]."""
    if attention_mask is None:
        return hidden.mean(dim=1)
    weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def _join(parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Put batches together; sequences of different lengths are filled up at the end."""
    if parts[0].ndim < 2 or len({part.shape[1] for part in parts}) == 1:
        return np.concatenate(parts)
    longest = max(part.shape[1] for part in parts)
    pads = [[(0, 0), (0, longest - part.shape[1]), *[(0, 0)] * (part.ndim - 2)] for part in parts]
    filled = [np.pad(part, pad, constant_values=PADDING) for part, pad in zip(parts, pads, strict=True)]
    return np.concatenate(filled)
