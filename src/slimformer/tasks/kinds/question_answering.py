"""Questions whose answer is a span of a given context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slimformer.errors import DataError, describe
from slimformer.tasks.encoding import TextEncoder
from slimformer.tasks.features import Features, PaddingCollator, padding_collator
from slimformer.tasks.kinds.answers import Snippet
from slimformer.tasks.kinds.kind import Answer, Arrays, Kind, Rename
from slimformer.tasks.kinds.texts import check_length, need_fast, text_of
from slimformer.tasks.metrics import answer_f1, chosen, exact_match

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from slimformer.tasks.columns import Columns
    from slimformer.tasks.preset import ReaderName
    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

#: Tokens by which two windows of a context overlap, where the window is long enough.
DOC_STRIDE = 128
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


class QuestionAnswering(Kind):
    """Extractive question answering; long contexts are read in overlapping windows.

    Questions without answers are allowed: the model then points at the first token, and when measured it
    may give no answer if the split, or the preset's setting `null_answers`, says that there are such questions.
    """

    name = "question-answering"
    items_of_row = 0  # a question may have several windows
    head = "AutoModelForQuestionAnswering"
    reads = ("start_logits", "end_logits")
    snippet = Snippet(
        (
            "inside = [part == 1 for part in batch[0].sequence_ids]",
            'start = np.where(inside, outputs["start_logits"][0], -np.inf).argmax()',
            'end = np.where(inside, outputs["end_logits"][0], -np.inf)[start:].argmax() + start',
            "print(context[batch[0].offsets[start][0] : batch[0].offsets[end][1]])",
        ),
        '[("which film", context := "a fine film it was")]',
    )
    pipeline_tag = "question-answering"
    metrics = ("f1", "exact_match")
    labelled = False
    max_length = 384
    targets = ("start_positions", "end_positions")
    readers: ClassVar[Mapping[str, ReaderName]] = {".txt": "tsv", ".json": "squad"}
    fields = ("question", "context")
    request = 'a question with its context: (question, context) or {"question": …, "context": …}'

    def columns(self, rows: SplitRows, text: str | Sequence[str] | None, label: str | None) -> Columns:
        """SQuAD's names, which files and Hub data sets share."""
        return super().columns(rows, text or ("question", "context"), label or "answers")

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
        encoder = TextEncoder(processor)
        _check_questions(split, encoder, max_length)
        questions, contexts = ([example[name] for example in split] for name in self.fields)
        overlap = min(DOC_STRIDE, max_length // 4)
        inputs, windows = [], []
        for index, encodings in enumerate(encoder.windows(questions, contexts, max_length, overlap)):
            for encoding in encodings:
                item = encoder.as_inputs(encoding)
                offsets = np.array(encoding.offsets, np.int32)
                offsets[[part != 1 for part in encoding.sequence_ids]] = -1
                window = Window(index, offsets, _null_position(item["input_ids"], processor))
                start, end = _target(split[index], window)
                inputs.append({**item, "start_positions": start, "end_positions": end})
                windows.append(window)
        return Features(inputs, windows)

    def collator(self, processor: Any) -> PaddingCollator:
        """Pads on the right whatever the tokenizer prefers, so that a token keeps its position in the outputs."""
        return padding_collator(processor, side="right")

    def outputs(self, outputs: Arrays, batch: Arrays) -> dict[str, Any]:
        """Scores of each position as start and as end."""
        return {"start_logits": outputs["start_logits"], "end_logits": outputs["end_logits"]}

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
        spans = self.spans(split, features, predictions)
        return [
            "" if span is None else example["context"][span.start : span.end]
            for example, span in zip(split, spans, strict=True)
        ]

    def spans(self, split: Split, features: Features, predictions: Any) -> list[Span | None]:
        """The span that answers each question; None for no answer."""
        starts, ends = (np.asarray(scores, np.float32) for scores in predictions[:2])
        may_be_null = self.settings.get("null_answers", False) or any(not example["answers"] for example in split)
        grouped: list[list[tuple[Window, NDArray[Any], NDArray[Any]]]] = [[] for _ in split]
        for window, start, end in zip(features.extra, starts, ends, strict=True):
            grouped[window.example].append((window, start, end))
        return [best_span(windows, may_be_null=may_be_null) for windows in grouped]

    def encode(self, request: Any) -> Example:
        """A question with its context."""
        if isinstance(request, (tuple, list)) and len(request) == 2:
            request = dict(zip(("question", "context"), request, strict=True))
        if not isinstance(request, Mapping):
            raise self.unfit(request)
        question, context = request.get("question"), request.get("context")
        if not isinstance(question, str) or not isinstance(context, str):
            raise self.unfit(request)
        if not question.strip() or not context.strip():
            raise DataError(f"the question or the context of a request is empty; give {self.request}")
        return {"id": "", "question": question.strip(), "context": context, "answers": [""], "starts": [0]}

    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """The piece of the context, where it stands and its score; an empty one for no answer."""
        answers: list[Answer] = []
        spans = self.spans(split, features, (outputs["start_logits"], outputs["end_logits"]))
        for example, span in zip(split, spans, strict=True):
            if span is None:
                answers.append({"text": "", "start": None, "end": None, "score": None})
                continue
            text = example["context"][span.start : span.end]
            answers.append({"text": text, "start": span.start, "end": span.end, "score": span.score})
        return answers

    def line(self, answer: Answer) -> str:
        """The answer and its score."""
        if answer["start"] is None:
            return "(no answer)"
        return f"{answer['text']} ({answer['start']}-{answer['end']}, score {answer['score']:.2f})"


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


def _answers(row: Row, value: Any, identity: str) -> tuple[list[str], list[int]]:
    if not isinstance(value, dict) or not {"text", "answer_start"} <= set(value):
        raise DataError(
            f"{row.at()}: answers of question `{identity}` read `{str(value)[:60]}`; "
            'give {"text": [...], "answer_start": [...]}, with empty lists for no answer'
        )
    if not all(isinstance(each, list | tuple) for each in value.values()):
        raise DataError(
            f"{row.at()}: answers of question `{identity}` read `{describe(value)}`; give lists of texts and starts"
        )
    texts, starts = list(value["text"]), list(value["answer_start"])
    if len(texts) != len(starts) or not all(type(start) is int and start >= 0 for start in starts):
        raise DataError(
            f"{row.at()}: question `{identity}` has {len(texts)} answers but starts `{starts}`; give each its start"
        )
    return texts, starts


def _check_questions(split: Split, encoder: TextEncoder, max_length: int) -> None:
    """Leave half of the window, which has to be more than the overlap, to the context."""
    questions = encoder.encodings([example["question"] for example in split], special_tokens=False)
    for index, question in enumerate(questions):
        if len(question.ids) > max_length // 2:
            identity = f": question `{split[index]['id']}`" if split[index]["id"] else ": the question"
            raise DataError(
                f"{split.at(index)}{identity} has {len(question.ids)} tokens, which is more than half of "
                f"max_length `{max_length}`; raise max_length or shorten the question"
            )


def _null_position(ids: NDArray[Any], tokenizer: PreTrainedTokenizerBase) -> int:
    """Where a model points when there is no answer: the classification token, or else the first."""
    places = np.flatnonzero(ids == tokenizer.cls_token_id).tolist() if tokenizer.cls_token_id is not None else []
    return places[0] if places else 0


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
