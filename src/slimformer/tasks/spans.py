"""From start and end scores over windows of a context to one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

#: Starts and ends considered in a window, and the longest answer in tokens, as BERT's recipe has them.
N_BEST = 20
MAX_ANSWER_TOKENS = 30


@dataclass(frozen=True)
class Window:
    """A stretch of a context that fits the model.

    Args:
        example: Which question of the split it belongs to.
        offsets: Characters of the context each token covers, [tokens, 2]; -1 for tokens that are not context.
        null: Position whose scores mean that the window holds no answer.
    """

    example: int
    offsets: NDArray[np.int32]
    null: int


@dataclass(frozen=True)
class Span:
    """A candidate answer: characters of the context, and its score."""

    start: int
    end: int
    score: float


def best_span(windows: Iterable[tuple[Window, NDArray[Any], NDArray[Any]]], *, may_be_null: bool) -> Span | None:
    """The best answer over all windows of a question; None when no answer scores higher.

    The score of no answer is the least over the windows, since every window without the answer votes for it;
    it wins when it is more than that of the best span (threshold 0).

    Args:
        windows: Each window with the scores of its positions as start and as end.
        may_be_null: Whether no answer is allowed.
    """
    best: Span | None = None
    null = np.inf
    for window, starts, ends in windows:
        null = min(null, float(starts[window.null] + ends[window.null]))
        span = _best_in(window, starts, ends)
        if span is not None and (best is None or span.score > best.score):
            best = span
    if may_be_null and (best is None or null > best.score):
        return None
    return best


def _best_in(window: Window, starts: NDArray[Any], ends: NDArray[Any]) -> Span | None:
    inside = np.flatnonzero(window.offsets[:, 0] >= 0)
    if len(inside) == 0:
        return None
    first = inside[np.argsort(-starts[inside], kind="stable")[:N_BEST]]
    last = inside[np.argsort(-ends[inside], kind="stable")[:N_BEST]]
    lengths = last[None, :] - first[:, None] + 1  # [starts, ends]
    scores = np.where((lengths >= 1) & (lengths <= MAX_ANSWER_TOKENS), starts[first][:, None] + ends[last], -np.inf)
    row, column = np.unravel_index(int(scores.argmax()), scores.shape)
    if scores[row, column] == -np.inf:
        return None
    return Span(int(window.offsets[first[row], 0]), int(window.offsets[last[column], 1]), float(scores[row, column]))
