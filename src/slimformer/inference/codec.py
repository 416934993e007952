"""How requests to a task become batches of arrays, and outputs become answers, whatever runs the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer import models
from slimformer.artifact.task import check_task, recorded_kind, recorded_preset
from slimformer.errors import ConfigError, DataError, describe
from slimformer.files import HALF, texts_in
from slimformer.tasks.columns import ways_to_read
from slimformer.tasks.splits import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig

    from slimformer.artifact import TaskRecord
    from slimformer.inference.runners import Array
    from slimformer.tasks.features import Features
    from slimformer.tasks.kinds.kind import Answer, Kind

#: Where a request without a file and a line comes from.
ORIGIN = "request"


@dataclass(frozen=True)
class TaskRequest:
    """Something asked, and where it was written.

    Args:
        content: A text, a pair, an object: see `Kind.request` of each kind of task.
        file: What messages call its source.
        line: Its line or number there, from 1.
        error: Why its line could not even be read.
    """

    content: Any
    file: str = ORIGIN
    line: int = 1
    error: str | None = None


@dataclass(frozen=True)
class Encoded:
    """Requests as inputs of a model."""

    split: Split
    features: Features


@dataclass(frozen=True)
class TaskCodec:
    """How requests to a task become batches of arrays, and outputs become answers.

    Args:
        kind: What the model has to do.
        processor: Tokenizer or image processor.
        max_length: Tokens a text is cut to; pixels a side for images without a processor.
        labels: The labels in the order of the head; None where there are none.
        columns: What the task's own data call the texts of a request, besides the names every task knows.
    """

    kind: Kind
    processor: Any
    max_length: int
    labels: Sequence[str] | None = None
    columns: tuple[str, ...] = ()

    @classmethod
    def of_record(cls, task: TaskRecord, processor: Any, config: PretrainedConfig) -> TaskCodec:
        """The codec of what an artifact was made for.

        Args:
            task: What the artifact says of its task.
            processor: Its tokenizer or image processor.
            config: The model's config.
        """
        check_task(task, config)
        preset = recorded_preset(task)
        kind = recorded_kind(task).for_model(causal=models.is_causal(config))
        if kind.new_tokens:
            return cls.generating(kind, processor, longest(kind, config, processor, None))
        recorded = task.settings.get("max_length")
        requested = recorded if isinstance(recorded, int) else preset.max_length if preset else kind.max_length
        length = longest(kind, config, processor, requested)
        return cls(kind, processor, length, task.labels, recorded_columns(task))

    @classmethod
    def generating(cls, kind: Kind, processor: Any, room: int, new_tokens: int | None = None) -> TaskCodec:
        """The codec of a decoder that goes on with texts.

        Args:
            kind: What it has to do.
            processor: Its tokenizer.
            room: Tokens of text and answer together.
            new_tokens: Tokens of the answer; by default the usual number, which leaves half of a small model's room
                to the text.
        """
        if new_tokens is not None and new_tokens >= room:
            raise ConfigError(
                f"`--max-new-tokens` is `{new_tokens}`, and text and answer have {room} tokens together; give less"
            )
        added = min(kind.new_tokens, max(1, room // 2)) if new_tokens is None else new_tokens
        return cls(kind.with_settings(max_new_tokens=added), processor, room)

    def encode(self, requests: Sequence[Any]) -> Encoded:
        """Turn requests into inputs; one of another form is a `DataError`.

        Args:
            requests: What is asked, bare or as `TaskRequest`.
        """
        if isinstance(requests, str | bytes | Mapping) or not isinstance(requests, Iterable):
            raise DataError(
                f"the requests are `{describe(requests)}`, a {type(requests).__name__}; give a list of them"
            )
        asked = [
            request if isinstance(request, TaskRequest) else TaskRequest(request, line=number)
            for number, request in enumerate(requests, start=1)
        ]
        origins = [(request.file, request.line) for request in asked]
        return self.prepare(Split([self.example(request) for request in asked], origins))

    def example(self, request: TaskRequest) -> dict[str, Any]:
        """The example that a request stands for."""
        if request.error is not None:
            raise DataError(request.error)
        content = request.content
        if isinstance(content, Mapping) and self.kind.fields[0] not in content:
            content = {**content, **self._renamed(content)}
        _refuse_unwritable(content)
        return self.kind.encode(content)

    def _renamed(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """What an object holds under other names: those of the task's own data, or those that data often have."""
        columns = self.columns
        if not columns or columns[0] not in content:
            ways = ways_to_read([str(name) for name in content])
            columns = ways[0] if len(ways) == 1 else ()
        names = zip(self.kind.fields, columns, strict=False)
        return {field: content[column] for field, column in names if column in content}

    def prepare(self, split: Split) -> Encoded:
        """Turn examples into inputs."""
        return Encoded(split, self.kind.inputs(split, self.processor, self.max_length))

    def collate(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
        """A batch of items."""
        return self.kind.request_collator(self.processor)(items)

    def decode(self, encoded: Encoded, outputs: Mapping[str, Array]) -> list[Answer]:
        """Turn outputs, in the order of the inputs, into answers."""
        for name, values in outputs.items():
            if values.dtype.kind == "f" and np.isnan(values).any():
                raise DataError(
                    f"the model gives nan in its `{name}`; its weights, its config or what prepares its inputs are "
                    "broken, copy the model again"
                )
        return self.kind.decode(encoded.split, encoded.features, outputs, self.labels, self.processor)


def longest(kind: Kind, config: PretrainedConfig, processor: Any, requested: int | None) -> int:
    """Tokens a text is cut to: as requested, and no more than model and tokenizer take."""
    if kind.modality == "images":
        return requested or kind.max_length
    limits = [requested, models.positions(config), getattr(processor, "model_max_length", None)]
    return min((limit for limit in limits if limit is not None), default=kind.max_length)


def recorded_length(kind: Kind) -> int | None:
    """Tokens that a sentence encoder says it reads."""
    sentence = kind.settings.get("sentence")
    return None if sentence is None else sentence.max_length


def recorded_columns(task: TaskRecord) -> tuple[str, ...]:
    """What the data of an artifact's task call its texts."""
    columns, preset = task.settings.get("text_column"), recorded_preset(task)
    if isinstance(columns, str) and task.settings.get("header") is not False:  # else they are numbers
        return tuple(name.strip() for name in columns.split(","))
    return preset.layouts[0].text if preset is not None and preset.layouts else ()


def _refuse_unwritable(content: Any) -> None:
    """Refuse text with half of a character in it, which JSON can spell and no tokenizer reads."""
    if any(HALF.search(text) for text in texts_in(content)):
        raise DataError("the text of a request is no Unicode: it holds half of a character; mend the text")
