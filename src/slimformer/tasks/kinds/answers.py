"""From outputs to answers: what several kinds of task share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slimformer.tasks.kinds.kind import Answer

#: Labels whose scores a person is shown.
SHOWN = 3


@dataclass(frozen=True)
class Snippet:
    """How a model is asked in a few lines of NumPy, as the card of an exported one shows.

    Args:
        answer: Lines that print answers, made of `outputs`, by name, of `batch`, what the tokenizer gave, and of
            `about`, what the file says of itself.
        asked: What the tokenizer encodes.
        axis: What is added to the arrays of inputs.
    """

    answer: tuple[str, ...]
    asked: str = '["a fine film", "two hours of my life"]'
    axis: str = ""


#: The likeliest label of each item.
CLASSES = Snippet(('print([about["labels"][i] for i in outputs["logits"].argmax(-1)])',))


def label_of(labels: Sequence[str] | None, number: Any) -> str:
    """The name of an output; its number where the head has no names."""
    return str(int(number)) if labels is None else labels[int(number)]


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Probabilities over the last axis."""
    raised: np.ndarray[Any, Any] = np.exp(logits - logits.max(-1, keepdims=True))
    shares: np.ndarray[Any, Any] = raised / raised.sum(-1, keepdims=True)
    return shares


def sigmoid(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The probability of each output by itself."""
    shares: np.ndarray[Any, Any] = 0.5 * (np.tanh(0.5 * logits) + 1)
    return shares


def class_answers(logits: Any, labels: Sequence[str] | None) -> list[Answer]:
    """The likeliest of several classes, and the probability of each."""
    answers = []
    for row in softmax(np.asarray(logits)):
        scores = {label_of(labels, number): float(share) for number, share in enumerate(row)}
        answers.append({"label": label_of(labels, row.argmax()), "probability": float(row.max()), "scores": scores})
    return answers


def scored_line(scores: Mapping[str, float], most: int = SHOWN) -> str:
    """The labels with the highest scores, as people read them."""
    best = sorted(scores.items(), key=lambda entry: -entry[1])[:most]
    return ", ".join(f"{label} {score:.4f}" for label, score in best)


def likeliest(logits: Any, places: Any, candidates: int) -> dict[str, Any]:
    """The likeliest tokens at some places and their probabilities, [items, places, candidates]; -1 where there is none.

    Args:
        logits: [items, length, vocabulary], in NumPy or in torch.
        places: 1 for the places, [items, length].
        candidates: How many tokens.
    """
    where = np.asarray(places.cpu() if hasattr(places, "cpu") else places) > 0
    most = int(where.sum(1).max())
    tokens = np.full((len(where), most, candidates), -1, np.int64)
    shares = np.zeros(tokens.shape, np.float32)
    for index, row in enumerate(where):
        chosen = logits[index][np.flatnonzero(row)]
        scores = np.asarray(chosen.float().cpu() if hasattr(chosen, "cpu") else chosen)
        best = np.argsort(-scores, axis=-1, kind="stable")[:, :candidates]
        tokens[index, : len(best), : best.shape[1]] = best
        shares[index, : len(best), : best.shape[1]] = np.take_along_axis(softmax(scores), best, -1)
    return {"tokens": tokens, "shares": shares}
