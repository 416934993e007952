"""Answers of a bank of masks on the native engine, compared with those of each task alone and with torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoTokenizer

from slimformer import models

if TYPE_CHECKING:
    from slimformer.bank import MaskBank

#: How far logits may be from those of torch, as a share of the largest one and beside that: an artifact's own limits.
TOLERANCE = (1e-4, 1e-5)


def agreement(native: MaskBank, requests: dict[str, list[str]], batch: int, alone: int = 4) -> dict[str, Any]:
    """Whether each task answers in a mixed batch as it does alone, and how far from its masked model in torch.

    Args:
        native: The bank on the engine.
        requests: Texts of each task.
        batch: Rows of a forward.
        alone: Texts of each task, at most, that are asked one by one, too.
    """
    mixed_rows = native.logits(requests, batch)
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("minilm"))
    same = same_one_by_one = True
    apart, largest, other_labels = 0.0, 0.0, 0
    for name, texts in requests.items():
        rows = np.stack(mixed_rows[name])
        same &= np.array_equal(rows, np.stack(native.logits({name: texts}, batch)[name]))
        singles = [native.logits({name: [text]}, 1)[name][0] for text in texts[:alone]]
        same_one_by_one &= np.array_equal(rows[:alone], np.stack(singles))
        with torch.inference_mode():
            expected = native.use(name)(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()
        gaps = np.abs(rows - expected)
        apart, largest = max(apart, float(gaps.max())), max(largest, float(np.abs(expected).max()))
        other_labels += int((rows.argmax(axis=-1) != expected.argmax(axis=-1)).sum())
    within = apart <= TOLERANCE[0] * largest + TOLERANCE[1]
    return {
        "rows": sum(map(len, requests.values())),
        "same_bits_task_by_task": bool(same),
        "same_bits_one_by_one": bool(same_one_by_one),
        "largest_difference_to_torch": apart,
        "largest_logit": largest,
        "other_labels_than_torch": other_labels,
        "holds": bool(same and same_one_by_one and within),
    }
