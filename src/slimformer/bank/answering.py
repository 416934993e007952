"""From what a user asks of a task to the model's inputs, and from its outputs to answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer import models
from slimformer.errors import DataError
from slimformer.tasks import get_task
from slimformer.tasks.kinds import kind_of
from slimformer.tasks.splits import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig

    from slimformer.artifact import TaskRecord
    from slimformer.tasks.features import Features
    from slimformer.tasks.kinds.kind import Kind

#: What the inputs of a model do not include when it only answers.
TARGETS = ("labels", "start_positions", "end_positions")


@dataclass(frozen=True)
class Asked:
    """Questions to one task, as inputs of its model."""

    split: Split
    features: Features
    items: list[dict[str, Any]]


@dataclass(frozen=True)
class Answerer:
    """How one task is asked and answers.

    A classification takes texts or pairs and answers with `label` and `probability`; a regression takes the same and
    gives a number; tagging takes texts (words between blanks) or lists of words and gives a tag for each word; a
    multiple choice takes (question, [choices]) and gives the number of a choice; question answering takes
    (question, context) and gives a piece of the context. Images are whatever has an `open()` that gives one.

    Args:
        task: What the artifact says of its task.
        processor: Tokenizer or image processor.
        config: The model's config.
    """

    task: TaskRecord
    processor: Any
    config: PretrainedConfig

    @property
    def kind(self) -> Kind:
        """What the task's kind does."""
        name: Any = self.task.kind
        return kind_of(name, get_task(self.task.name).preset.settings)

    @property
    def max_length(self) -> int:
        """Tokens a text is cut to."""
        given = self.task.settings.get("max_length")
        limits = [
            given if isinstance(given, int) else get_task(self.task.name).preset.max_length,
            models.positions(self.config),
            getattr(self.processor, "model_max_length", None),
        ]
        return min(limit for limit in limits if limit is not None)

    def ask(self, questions: Sequence[Any]) -> Asked:
        """Turn questions into inputs."""
        examples = [self._example(question) for question in questions]
        split = Split(examples, [("the request", number) for number in range(len(examples))])
        features = self.kind.features(split, self.processor, self.max_length, 0)
        items = [
            {name: value for name, value in features[index].items() if name not in TARGETS}
            for index in range(len(features))
        ]
        return Asked(split, features, items)

    def collate(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A batch of items."""
        return self.kind.collator(self.processor)(items)

    def answers(self, asked: Asked, outputs: Any) -> list[Any]:
        """Turn outputs, in the order of the items, into answers."""
        match self.task.kind:
            case "regression":
                return [float(value) for value in np.asarray(outputs).reshape(len(asked.items), -1)[:, 0]]
            case "tagging":
                best = np.asarray(outputs).argmax(-1)
                return [
                    [self._label(row[place]) if place >= 0 else None for place in places]
                    for row, places in zip(best, asked.features.extra, strict=True)
                ]
            case "multiple-choice":
                scores = np.array(outputs)
                scores[np.arange(scores.shape[1]) >= np.array(asked.features.extra)[:, None]] = -np.inf
                return [int(row.argmax()) for row in scores]
            case "question-answering":
                kind: Any = self.kind
                answers: list[Any] = kind.answers(asked.split, asked.features, outputs)
                return answers
        shares = softmax(np.asarray(outputs))
        return [{"label": self._label(row.argmax()), "probability": float(row.max())} for row in shares]

    def _label(self, number: int) -> str:
        names = self.task.labels
        return str(int(number)) if names is None else names[int(number)]

    def _example(self, question: Any) -> dict[str, Any]:
        match self.task.kind, question:
            case "classification" | "regression", str():
                return {"text": question, "label": 0}
            case "classification" | "regression", (str() as text, str() as pair):
                return {"text": text, "text_pair": pair, "label": 0}
            case "tagging", str() if question.split():
                return {"tokens": question.split(), "tags": [0] * len(question.split())}
            case "tagging", [*words] if words:
                return {"tokens": [str(word) for word in words], "tags": [0] * len(words)}
            case "multiple-choice", (str() as text, [*choices]) if len(choices) > 1:
                return {"question": text, "choices": [str(choice) for choice in choices], "label": 0}
            case "question-answering", (str() as text, str() as context):
                return {"id": "", "question": text, "context": context, "answers": [""], "starts": [0]}
            case "image-classification", _ if hasattr(question, "open"):
                return {"image": question, "label": 0}
        raise DataError(
            f"a question to task `{self.task.name}` ({self.task.kind}) reads `{str(question)[:60]}`; see "
            "`slimformer.bank.answering.Answerer` for what each kind of task takes"
        )


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Probabilities over the last axis."""
    raised: np.ndarray[Any, Any] = np.exp(logits - logits.max(-1, keepdims=True))
    shares: np.ndarray[Any, Any] = raised / raised.sum(-1, keepdims=True)
    return shares
