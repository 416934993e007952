"""Questions whose answer is a span of a given context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.collators import PaddingCollator, padding_collator
from slimformer.tasks.features import Features, as_arrays
from slimformer.tasks.kinds.kind import Kind, Rename, check_length, need_fast, text_of
from slimformer.tasks.metrics.choosing import chosen
from slimformer.tasks.metrics.squad import answer_f1, exact_match
from slimformer.tasks.spans import Window, best_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.columns import Columns
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

#: Tokens by which two windows of a context overlap, where the window is long enough.
DOC_STRIDE = 128


class QuestionAnswering(Kind):
    """Extractive question answering; long contexts are read in overlapping windows.

    Questions without answers are allowed: the model then points at the first token, and when measured it
    may give no answer if the split, or the preset's setting `null_answers`, says that there are such questions.
    """

    name = "question-answering"
    head = "AutoModelForQuestionAnswering"
    metrics = ("f1", "exact_match")
    labelled = False

    def columns(self, found: SplitRows, text: str | Sequence[str] | None, label: str | None) -> Columns:
        """SQuAD's names, which files and Hub data sets share."""
        return super().columns(found, text or ("question", "context"), label or "answers")

    def group(self, columns: Columns) -> tuple[str, ...]:
        """Questions on one context stay together."""
        return columns.text[1:]

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One question, its answers checked against the context."""
        assert columns.label is not None
        identity = str(row.values.get("id") or f"{row.file}:{row.line}")
        context = row.values[columns.text[1]]
        if not isinstance(context, str) or not context.strip():
            raise DataError(f"{row.at()}: question `{identity}` has no context; give the text that holds the answer")
        texts, starts = _answers(row, row.values[columns.label], identity)
        for answer, start in zip(texts, starts, strict=True):
            if not answer or context[start : start + len(answer)] != answer:
                raise DataError(
                    f"{row.at()}: question `{identity}` has the answer `{answer[:60]}` at character {start}, where the "
                    f"context reads `{context[start : start + max(len(answer), 1)][:60]}`; mend answer_start"
                )
        question = text_of(row, columns.text[0])
        return [{"id": identity, "question": question, "context": context, "answers": texts, "starts": starts}]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise into windows; `extra` holds what is needed to read answers off them."""
        need_fast(processor, "question answering")
        check_length(processor, max_length)
        encoded = _encode(split, processor, max_length)
        names = [name for name in encoded if name not in ("offset_mapping", "overflow_to_sample_mapping")]
        inputs, windows = [], []
        for index, example in enumerate(encoded["overflow_to_sample_mapping"]):
            item = as_arrays({name: encoded[name][index] for name in names})
            offsets = np.array(encoded["offset_mapping"][index], np.int32)
            offsets[[part != 1 for part in encoded.sequence_ids(index)]] = -1
            window = Window(example, offsets, _null_position(item["input_ids"], processor))
            start, end = _target(split[example], window)
            inputs.append({**item, "start_positions": start, "end_positions": end})
            windows.append(window)
        return Features(inputs, windows)

    def collator(self, processor: Any) -> PaddingCollator:
        """Pads on the right whatever the tokenizer prefers, so that a token keeps its position in the outputs."""
        return padding_collator(processor, side="right")

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare answers."""
        texts = self.answers(split, features, predictions)
        pairs = [(text, example["answers"]) for text, example in zip(texts, split, strict=True)]
        return chosen(
            {
                "f1": lambda: sum(answer_f1(*pair) for pair in pairs) / len(pairs),
                "exact_match": lambda: sum(exact_match(*pair) for pair in pairs) / len(pairs),
            },
            metrics,
        )

    def answers(self, split: Split, features: Features, predictions: Any) -> list[str]:
        """The answer to each question; an empty one for no answer.

        Args:
            split: The questions.
            features: Their windows.
            predictions: Scores of starts and of ends, each [windows, positions].
        """
        starts, ends = (np.asarray(scores, np.float32) for scores in predictions[:2])
        may_be_null = self.settings.get("null_answers", False) or any(not example["answers"] for example in split)
        grouped: list[list[tuple[Window, NDArray[Any], NDArray[Any]]]] = [[] for _ in split]
        for window, start, end in zip(features.extra, starts, ends, strict=True):
            grouped[window.example].append((window, start, end))
        spans = [best_span(windows, may_be_null=may_be_null) for windows in grouped]
        return [
            "" if span is None else example["context"][span.start : span.end]
            for example, span in zip(split, spans, strict=True)
        ]


def _answers(row: Row, value: Any, identity: str) -> tuple[list[str], list[int]]:
    if not isinstance(value, dict) or not {"text", "answer_start"} <= set(value):
        raise DataError(
            f"{row.at()}: answers of question `{identity}` read `{str(value)[:60]}`; "
            'give {"text": [...], "answer_start": [...]}, with empty lists for no answer'
        )
    texts, starts = list(value["text"]), list(value["answer_start"])
    if len(texts) != len(starts) or not all(isinstance(start, int) and start >= 0 for start in starts):
        raise DataError(
            f"{row.at()}: question `{identity}` has {len(texts)} answers but starts `{starts}`; give each its start"
        )
    return texts, starts


def _encode(split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Any:
    questions = [example["question"] for example in split]
    # Leave half of the window, which has to be more than the overlap, to the context.
    for index, ids in enumerate(tokenizer(questions, add_special_tokens=False)["input_ids"]):
        if len(ids) > max_length // 2:
            raise DataError(
                f"{split.at(index)}: question `{split[index]['id']}` has {len(ids)} tokens, which is more than half of "
                f"max_length `{max_length}`; raise max_length or shorten the question"
            )
    return tokenizer(
        questions,
        [example["context"] for example in split],
        truncation="only_second",
        max_length=max_length,
        stride=min(DOC_STRIDE, max_length // 4),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )


def _null_position(ids: NDArray[Any], tokenizer: PreTrainedTokenizerBase) -> int:
    """Where a model points when there is no answer: the classification token, or else the first."""
    found = np.flatnonzero(ids == tokenizer.cls_token_id).tolist() if tokenizer.cls_token_id is not None else []
    return found[0] if found else 0


def _target(example: Example, window: Window) -> tuple[int, int]:
    """Start and end token of the first answer; the null position when the window does not hold all of it."""
    if not example["answers"]:
        return window.null, window.null
    begin = example["starts"][0]
    end = begin + len(example["answers"][0])
    starts, ends = window.offsets[:, 0], window.offsets[:, 1]
    inside = starts >= 0
    first = np.flatnonzero(inside & (starts <= begin) & (ends > begin))
    last = np.flatnonzero(inside & (starts < end) & (ends >= end))
    if len(first) == 0 or len(last) == 0:
        return window.null, window.null
    return int(first[0]), int(last[-1])
