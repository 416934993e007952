"""Answers as spans of a context, in the form that `pipeline("question-answering")` of Transformers 4 gave them.

Transformers 5 has that pipeline no more; the rules are those of 4.56. There is none to ask, so tests compare
with a slow search of all spans, over logits that torch computes. The logits of a window become shares of all places
that may be chosen, the first token among them. The score of a span is the share of its start times that of its end.
Spans that say the same, wherever they stand, are one answer with the sum of their scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.counts import check_count
from slimformer.errors import ConfigError, DataError, describe
from slimformer.runtime.answering.inputs import as_list
from slimformer.runtime.answering.labels import softmax

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slimformer.runtime.answering.texts import TextReader
    from slimformer.runtime.onnx import Array

#: Tokens of a window where nobody says otherwise.
WINDOW = 384


@dataclass(frozen=True)
class SpanLimits:
    """Which answers are to be given.

    Args:
        top_k: How many of each question at most.
        max_answer_len: Tokens of the longest.
        no_answer: Whether no answer is one, an empty text.
        align: Whether an answer begins and ends with words.
    """

    top_k: int = 1
    max_answer_len: int = 15
    no_answer: bool = False
    align: bool = True

    def __post_init__(self) -> None:
        check_count("top-k", self.top_k)
        check_count("max-answer-len", self.max_answer_len)


def questions(asked: Any, question: Any = None, context: Any = None) -> tuple[list[tuple[str, str]], bool]:
    """Questions with their contexts, and whether only one was asked.

    Args:
        asked: A pair, a dict of `question` and `context`, or several of these; None where the next two are given.
        question: A question or several.
        context: Its context, or one for each, or one for all.
    """
    named = {name: value for name, value in (("question", question), ("context", context)) if value is not None}
    if not named:
        return [_pair(each) for each in as_list(asked, (str, tuple, Mapping))], isinstance(asked, tuple | Mapping)
    name, value = next(iter(named.items()))
    if asked is not None:
        raise ConfigError(f"`{name}` is `{describe(value)}` beside `{describe(asked)}`; leave one of them out")
    if len(named) == 1:
        other = "context" if name == "question" else "question"
        raise ConfigError(f"`{name}` is `{describe(value)}` and there is no `{other}`; give both")
    several, contexts = _texts("question", question), _texts("context", context)
    if isinstance(context, str):
        contexts *= len(several)
    if len(contexts) != len(several):
        raise DataError(f"there are {len(several)} questions and {len(contexts)} contexts; give one for each")
    return [_pair(each) for each in zip(several, contexts, strict=True)], isinstance(question, str)


def _texts(name: str, value: Any) -> list[str]:
    """A text or several, given by name."""
    listed = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else []
    if not listed or isinstance(value, Mapping) or not all(isinstance(each, str) for each in listed):
        raise DataError(f"`{name}` is `{describe(value)}`; give a text or a list of texts")
    return listed


def _pair(asked: Any) -> tuple[str, str]:
    parts: Any = asked
    if isinstance(asked, Mapping) and set(asked) == {"question", "context"}:
        parts = asked["question"], asked["context"]
    fits = isinstance(parts, tuple | list) and len(parts) == 2
    if not fits or not all(isinstance(part, str) and part.strip() for part in parts):
        raise DataError(
            f"`{describe(asked)}` is no question with its context; give {{'question': …, 'context': …}} or a tuple of "
            "the two"
        )
    return parts[0], parts[1]


class SpanFinder:
    """Answers questions from their contexts, window by window.

    Args:
        reader: Reads questions with their contexts.
        batch_size: Windows of one forward.
    """

    def __init__(self, reader: TextReader, batch_size: int) -> None:
        self.reader = reader
        self.batch_size = check_count("batch-size", batch_size)

    def answers(self, asked: Sequence[tuple[str, str]], limits: SpanLimits) -> list[list[dict[str, Any]]]:
        """The best answers to each question, the best first."""
        for question, _ in asked:
            length, longest = self.reader.question_length(question), self.reader.longest_question
            if length > longest:
                raise DataError(
                    f"the question `{describe(question)}` has {length} tokens, and at most {longest} of the "
                    f"{self.reader.max_length} that are read at once may be of it; shorten it, or give a longer "
                    "`max_length`"
                )
        read = self.reader.read(asked)
        windows = [[each, *each.overflowing] for each in read]
        logits = iter(self._logits([window for each in windows for window in each]))
        return [
            best_spans([(window, next(logits)) for window in each], context, limits)
            for each, (_, context) in zip(windows, asked, strict=True)
        ]

    def _logits(self, windows: list[Any]) -> Iterator[Array]:
        """Of each window [tokens, 2]: as start, and as end."""
        for first in range(0, len(windows), self.batch_size):
            batch = windows[first : first + self.batch_size]
            yield from np.split(self.reader.run(batch), np.cumsum([len(each.ids) for each in batch])[:-1])


def best_spans(windows: Sequence[tuple[Any, Array]], context: str, limits: SpanLimits) -> list[dict[str, Any]]:
    """The best answers over all windows of a context; each window with its logits, [tokens, 2]."""
    nothing = 1.0
    spans: dict[str, dict[str, Any]] = {}
    for window, logits in windows:
        inside = np.array([part == 1 for part in window.sequence_ids])
        open_ = inside.copy()
        open_[0] = True  # where a model points that has no answer
        starts, ends = softmax(np.where(open_[:, None], logits, -np.inf).T)
        nothing = min(nothing, float(starts[0] * ends[0]))
        for start, end in _spans(np.where(inside, starts, 0), np.where(inside, ends, 0), limits):
            span = _answer(window, context, start, end, float(starts[start] * ends[end]), limits.align)
            same = spans.setdefault(span["answer"].lower(), {**span, "score": 0.0})
            same["score"] += span["score"]
    answers = list(spans.values())
    if limits.no_answer or not answers:  # of some contexts a tokenizer leaves nothing
        answers.append({"score": nothing if limits.no_answer else 0.0, "start": 0, "end": 0, "answer": ""})
    return sorted(answers, key=lambda span: -span["score"])[: limits.top_k]


def _spans(starts: Array, ends: Array, limits: SpanLimits) -> Iterator[tuple[int, int]]:
    """The likeliest pairs of a start and an end that is not before it."""
    products = np.tril(np.triu(np.outer(starts, ends)), limits.max_answer_len - 1)
    # Of whole words, several spans of tokens may be one.
    candidates = 2 * limits.top_k + 10 if limits.align else limits.top_k
    for place in np.argsort(-products, axis=None, kind="stable")[:candidates]:
        start, end = divmod(int(place), len(ends))
        if products[start, end] > 0:
            yield start, end


def _answer(window: Any, context: str, start: int, end: int, score: float, align: bool) -> dict[str, Any]:
    first, last = window.offsets[start][0], window.offsets[end][1]
    if align:
        words = window.token_to_word(start), window.token_to_word(end)
        if None not in words:
            first = window.word_to_chars(words[0], 1)[0]
            last = window.word_to_chars(words[1], 1)[1]
    return {"score": score, "start": first, "end": last, "answer": context[first:last]}
