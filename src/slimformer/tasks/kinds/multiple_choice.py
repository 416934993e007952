"""Questions of which one of several answers is right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.tasks.columns import ANSWERS, Columns, guess_one, label_text
from slimformer.tasks.encoding import TextEncoder
from slimformer.tasks.features import Features, PaddingCollator, padding_collator
from slimformer.tasks.kinds.answers import Snippet, softmax
from slimformer.tasks.kinds.kind import Answer, Arrays, Kind, Rename
from slimformer.tasks.kinds.texts import IncompleteRowError, check_length, text_of
from slimformer.tasks.metrics import classification_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.tasks.readers import Row
    from slimformer.tasks.sources import SplitRows
    from slimformer.tasks.splits import Example, Split

#: Names of a column of its own for each choice: `choice0`, `ending_1`, `option2`, or a single letter.
_CHOICE_COLUMN = re.compile(r"(choice|ending|option|answer)[_ ]?\d+|[a-h]", re.IGNORECASE)
_LETTERS = "ABCDEFGH"


class MultipleChoice(Kind):
    """Choosing one of two or more answers; questions may differ in how many they have.

    A question with fewer choices than the longest of its split is filled up with empty ones, so that a
    batch is one tensor; an empty choice is never taken for the answer.
    """

    name = "multiple-choice"
    head = "AutoModelForMultipleChoice"
    snippet = Snippet(
        ('print(outputs["logits"].argmax(-1))',), '[("a fine film", "good"), ("a fine film", "bad")]', axis="[None]"
    )
    pipeline_tag = "multiple-choice"
    metrics = ("accuracy",)
    labelled = False
    axes = ("batch", "choices", "length")
    fields = ("question",)
    request = 'a question with its choices: (question, [choices]) or {"question": …, "choices": […]}'

    def rows(self, example: Example) -> int:
        """The question with each of its choices."""
        return len(example["choices"])

    def guess_text(self, rows: SplitRows, label: str | None) -> tuple[str, ...]:
        """The column of the question, and of its continuation where SWAG has one."""
        names = {name.lower(): name for name in rows.columns}
        if {"sent1", "sent2"} <= set(names):
            return (names["sent1"], names["sent2"])
        return (guess_one(rows, ("question", "context", "prompt", "text"), "question", "text_column"),)

    def guess_label(self, rows: SplitRows) -> str:
        """The column of the answer."""
        return guess_one(rows, ANSWERS, "answer")

    def guess_choices(self, rows: SplitRows, label: str | None) -> tuple[str, ...]:
        """The column `choices` with a list, or one column for each choice."""
        if "choices" in rows.columns:
            return ("choices",)
        columns = tuple(name for name in rows.columns if _CHOICE_COLUMN.fullmatch(name) and name != label)
        if len(columns) < 2:
            raise DataError(
                f"`{rows.file}` does not tell which columns hold the choices: it has "
                f"{', '.join(f'`{name}`' for name in rows.columns)}; name them choice0, choice1, … "
                "or give a list `choices` as JSONL"
            )
        return columns

    def parse(self, row: Row, columns: Columns, rename: Rename) -> list[Example]:
        """One question; with two text columns the second begins every choice, as in SWAG."""
        assert columns.label is not None
        question = text_of(row, columns.text[0])
        choices, names = _choices(row, columns)
        if len(choices) < 2:
            raise IncompleteRowError(f"{row.at()}: {len(choices)} choices; a question needs at least two")
        answer = _answer(label_text(row.values[columns.label], row, columns.label), choices, names, row)
        if len(columns.text) > 1:
            begin = str(row.values[columns.text[1]] or "").strip()
            choices = [f"{begin} {choice}".strip() for choice in choices]
        return [{"question": question, "choices": choices, "label": answer}]

    def features(self, split: Split, processor: Any, max_length: int, seed: int) -> Features:
        """Tokenise every question with each of its choices; `extra` holds how many are real."""
        check_length(processor, max_length)
        width = max(len(example["choices"]) for example in split)
        questions = [example["question"] for example in split for _ in range(width)]
        choices = [
            choice for example in split for choice in [*example["choices"], *[""] * (width - len(example["choices"]))]
        ]
        encoded = TextEncoder(processor).inputs(questions, choices, max_length)
        inputs = []
        for index, example in enumerate(split):
            rows = encoded[index * width : (index + 1) * width]
            item = {name: [row[name] for row in rows] for name in rows[0]}
            inputs.append({**item, "labels": example["label"]})
        return Features(inputs, [len(example["choices"]) for example in split])

    def collator(self, processor: Any) -> PaddingCollator:
        """Pads all choices of a batch to one length: [batch, choices, length]."""
        return padding_collator(processor, choices=True)

    def score(
        self, split: Split, features: Features, predictions: Any, labels: Sequence[str] | None, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compare the best of the real choices with the answer."""
        scores = _real(predictions, features)
        truth = np.array([example["label"] for example in split])
        return classification_metrics(truth, scores.argmax(-1), scores.shape[1], metrics)

    def encode(self, request: Any) -> Example:
        """A question with its choices."""
        if isinstance(request, (tuple, list)) and len(request) == 2:
            request = dict(zip(("question", "choices"), request, strict=True))
        if not isinstance(request, Mapping):
            raise self.unfit(request)
        question, choices = request.get("question"), request.get("choices")
        if not isinstance(question, str) or not isinstance(choices, (tuple, list)) or len(choices) < 2:
            raise self.unfit(request)
        choices = [str(choice).strip() for choice in choices]
        if not question.strip() or not all(choices):
            raise DataError(f"the question or a choice of a request is empty; give {self.request}")
        return {"question": question.strip(), "choices": choices, "label": 0}

    def decode(
        self, split: Split, features: Features, outputs: Arrays, labels: Sequence[str] | None, processor: Any
    ) -> list[Answer]:
        """The best choice, its number, and the probability of each."""
        answers = []
        for example, row in zip(split, softmax(_real(outputs["logits"], features)), strict=True):
            best = int(row.argmax())
            scores = [float(share) for share in row[: len(example["choices"])]]
            answers.append(
                {"index": best, "choice": example["choices"][best], "probability": scores[best], "scores": scores}
            )
        return answers

    def line(self, answer: Answer) -> str:
        """The choice."""
        return f"{answer['index']}: {answer['choice']} {answer['probability']:.4f}"


def _real(scores: Any, features: Features) -> np.ndarray[Any, Any]:
    """The scores of choices, [questions, choices]; one that only fills up is never the best."""
    real = np.array(scores, dtype=np.float64)
    real[np.arange(real.shape[1]) >= np.array(features.extra)[:, None]] = -np.inf
    return real


def _choices(row: Row, columns: Columns) -> tuple[list[str], list[str]]:
    """The choices of a row and what the answer may call them; blank columns at the end are left out."""
    if len(columns.choices) > 1:
        texts = [str(row.values[column] or "").strip() for column in columns.choices]
        while texts and not texts[-1]:
            texts.pop()
        names = list(columns.choices[: len(texts)])
    else:
        value = row.values[columns.choices[0]]
        if isinstance(value, dict):  # the Hub's ARC: {"text": [...], "label": [...]}
            texts, names = list(value.get("text", ())), [str(name) for name in value.get("label", ())]
        elif isinstance(value, list):
            texts, names = [str(choice) for choice in value], []
        else:
            raise DataError(f"{row.at()}: `{columns.choices[0]}` holds `{value}`; give a list of choices")
    if any(not text.strip() for text in texts):
        raise IncompleteRowError(
            f"{row.at()}: choice {[bool(text.strip()) for text in texts].index(False) + 1} is empty; mend the row"
        )
    return texts, names


def _answer(answer: str, choices: Sequence[str], names: Sequence[str], row: Row) -> int:
    """The index of the answer, which may be a name, a letter, a number from 0, or the choice itself.

    Where choices are known by letters, as in ARC, digits count from 1.
    """
    for known in (names, choices):
        if answer in known:
            return list(known).index(answer)
    lettered = bool(names) and all(len(name) == 1 for name in names)
    if answer.isdecimal():
        index = int(answer) - (1 if lettered else 0)
    elif len(answer) == 1 and answer.upper() in _LETTERS:
        index = _LETTERS.index(answer.upper())
    else:
        index = -1
    if not 0 <= index < len(choices):
        raise IncompleteRowError(
            f"{row.at()}: answer `{answer}` is none of the {len(choices)} choices; "
            "give a letter from A, a number from 0, or the choice itself"
        )
    return index
