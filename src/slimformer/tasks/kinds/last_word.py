"""Predicting the last word of a passage, as LAMBADA asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.collators import IGNORED
from slimformer.tasks.features import Features
from slimformer.tasks.kinds.kind import Kind, Rename, check_length, need_fast, text_of
from slimformer.tasks.metrics.likelihood import likelihood_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.tasks.columns import Columns
    from slimformer.tasks.readers import Row
    from slimformer.tasks.splits import Example, Split


class LastWord(Kind):
    """Last-word prediction with a causal model; right when every token of the word is the likeliest."""

    name = "last-word"
    head = "AutoModelForCausalLM"
    metrics = ("last_word_accuracy", "perplexity", "loss")
    labelled = False

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One passage of at least two words."""
        text = text_of(row, columns.text[0])
        if len(text.split()) < 2:
            raise DataError(f"{row.at()}: `{text}` is one word; a passage needs a context and a last word")
        return [{"text": text, "word": text.split()[-1]}]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise passages, keeping their ends where they are too long; only the last word has labels."""
        need_fast(processor, "last-word prediction")
        check_length(processor, max_length)
        texts = [example["text"] for example in split]
        encoded = processor(texts, truncation=False, return_offsets_mapping=True, verbose=False)
        inputs = []
        for index, example in enumerate(split):
            ids = np.array(encoded["input_ids"][index], np.int32)
            ends = np.array([end for _, end in encoded["offset_mapping"][index]])
            labels = np.where(ends > len(example["text"]) - len(example["word"]), ids, IGNORED).astype(np.int32)
            ids, labels = _without_closing(ids, labels)
            ids, labels = ids[-max_length:], labels[-max_length:]
            inputs.append({"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels})
        return Features(inputs)

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Likelihood of the last words; predictions are what `reduce` left of the logits."""
        return likelihood_metrics(predictions, metrics)


def _without_closing(
    ids: np.ndarray[Any, np.dtype[np.int32]], labels: np.ndarray[Any, np.dtype[np.int32]]
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.int32]]]:
    """Leave out special tokens that a tokenizer put after the word."""
    end = int(np.flatnonzero(labels != IGNORED)[-1]) + 1
    return ids[:end], labels[:end]
