"""Requests in, answers out: the one way from what a user asks to inputs of a model, and from its outputs to answers.

Everything here is in NumPy; what runs the model is a callable on arrays. So an engine without torch is used like a
model in torch, and any number of threads may share a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from slimformer import models
from slimformer.errors import CheckpointError, ConfigError, DataError
from slimformer.inference.door import Source, look_up, open_model
from slimformer.inference.heads import check_head, check_length
from slimformer.inference.runners import TorchGenerator, TorchRunner, run
from slimformer.models.sentence import SentenceSettings
from slimformer.tasks import get_task, known
from slimformer.tasks.columns import ways_to_read
from slimformer.tasks.kinds import kind_of, kind_of_model
from slimformer.tasks.splits import Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from transformers import PretrainedConfig

    from slimformer.artifact import TaskRecord
    from slimformer.inference.runners import Array, Runner
    from slimformer.tasks.features import Features
    from slimformer.tasks.kinds.kind import Answer, Kind
    from slimformer.tasks.preset import Preset

#: Requests in memory at a time, in batches: enough to sort by length, few enough for any number of lines.
BATCHES = 16
#: Where a request without a file and a line comes from.
ORIGIN = "request"


@dataclass(frozen=True)
class Request:
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
class Failure:
    """A request that has no answer.

    Args:
        line: Its line or number, from 1.
        error: What was wrong with it.
    """

    line: int
    error: str


Reply: TypeAlias = "Answer | Failure"


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
        preset = recorded_preset(task)
        kind = recorded_kind(task).for_model(causal=models.is_causal(config))
        recorded = task.settings.get("max_length")
        wanted = recorded if isinstance(recorded, int) else preset.max_length if preset else kind.max_length
        length = longest(kind, config, processor, wanted)
        return cls(kind, processor, length, task.labels, recorded_columns(task))

    def encode(self, requests: Sequence[Any]) -> Encoded:
        """Turn requests into inputs; one of another form is a `DataError`.

        Args:
            requests: What is asked, bare or as `Request`.
        """
        asked = [
            request if isinstance(request, Request) else Request(request, line=number)
            for number, request in enumerate(requests, start=1)
        ]
        origins = [(request.file, request.line) for request in asked]
        return self.prepare(Split([self.example(request) for request in asked], origins))

    def example(self, request: Request) -> dict[str, Any]:
        """The example that a request stands for."""
        if request.error is not None:
            raise DataError(request.error)
        content = request.content
        if isinstance(content, Mapping) and self.kind.fields[0] not in content:
            content = {**content, **self._renamed(content)}
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
        return self.kind.decode(encoded.split, encoded.features, outputs, self.labels, self.processor)


@dataclass(frozen=True)
class TaskPipeline:
    """A model that answers requests.

    Args:
        codec: How it is asked and answers.
        runner: What computes.
        batch_size: Items per forward; changes speed and memory only.

    Example:
        >>> pipeline = open_pipeline("out/sst2")
        >>> pipeline(["a fine film"])
        [{'label': 'positive', 'probability': 0.98, 'scores': {'negative': 0.02, 'positive': 0.98}}]
    """

    codec: TaskCodec
    runner: Runner
    batch_size: int = 32

    @property
    def kind(self) -> Kind:
        """What the model has to do."""
        return self.codec.kind

    def __call__(self, requests: Sequence[Any]) -> list[Answer]:
        """Answer all requests, in their order; one that cannot be answered is an error."""
        return self._answer(self.codec.encode(requests)) if requests else []

    def stream(self, requests: Iterable[Request]) -> Iterator[Reply]:
        """Answer any number of requests, in their order and in constant memory; those that fail say why."""
        waiting = iter(requests)
        while chunk := list(islice(waiting, self.batch_size * BATCHES)):
            yield from self._replies(chunk)

    def _answer(self, encoded: Encoded) -> list[Answer]:
        return self.codec.decode(encoded, run(encoded.features, self.codec.collate, self.runner, self.batch_size))

    def _replies(self, chunk: Sequence[Request]) -> list[Reply]:
        replies: list[Any] = []
        examples, places = [], []
        for place, request in enumerate(chunk):
            try:
                examples.append(self.codec.example(request))
                places.append(place)
                replies.append(None)
            except DataError as error:
                replies.append(Failure(request.line, str(error)))
        split = Split(examples, [(chunk[place].file, chunk[place].line) for place in places])
        for place, reply in zip(places, self._halves(split), strict=True):
            replies[place] = reply
        return replies

    def _halves(self, split: Split) -> list[Reply]:
        """Answer some examples together; if one is bad only as inputs of the model, find out which by halves."""
        if not len(split):
            return []
        try:
            return list(self._answer(self.codec.prepare(split)))
        except DataError as error:
            if len(split) == 1:
                return [Failure(split.origins[0][1], str(error).removeprefix(f"{split.at(0)}: "))]
        middle = len(split) // 2
        return [
            reply
            for half in (slice(None, middle), slice(middle, None))
            for reply in self._halves(Split(split.examples[half], split.origins[half]))
        ]


def open_pipeline(
    name: str | Path,
    *,
    task: str | None = None,
    base: str | Path | None = None,
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    batch_size: int = 32,
) -> TaskPipeline:
    """Open any model for requests: an artifact, a mask or a checkpoint.

    Args:
        name: An artifact, a folder, a Hub name or an alias.
        task: What it is to do, if that is something else than what it was made for, such as `retrieval` for vectors.
        base: Where the base of a mask is; where it was at saving when not given.
        max_length: Tokens a text is cut to; by default as the model was trained, or as many as it takes.
        max_new_tokens: Tokens that a decoder adds at most.
        batch_size: Items per forward; changes speed and memory only.
    """
    import transformers

    for flag, value in (("batch-size", batch_size), ("max-length", max_length), ("max-new-tokens", max_new_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"`--{flag}` is `{value}`; give 1 or more")
    source = look_up(name)
    kind = _kind(source, task)
    if max_new_tokens is not None and not kind.new_tokens:
        raise ConfigError(f"`--max-new-tokens` is `{max_new_tokens}`, and `{name}` generates no text; leave it out")
    check_length(max_length, kind, source.config)
    opened = open_model(source, model_class=getattr(transformers, kind.head), base=base)
    if kind.new_tokens:
        room = longest(kind, source.config, opened.processor, max_length)
        kind = kind.told(max_new_tokens=_new_tokens(max_new_tokens, kind.new_tokens, room))
        codec = TaskCodec(kind, opened.processor, room)
        return TaskPipeline(codec, TorchGenerator(opened.model, kind, opened.processor), batch_size)
    codec = _codec(source, kind, opened.processor, max_length)
    return TaskPipeline(codec, TorchRunner(opened.model.base_model if kind.embeds else opened.model, kind), batch_size)


def _new_tokens(given: int | None, usual: int, room: int) -> int:
    """Tokens that a decoder adds: as given, or the usual number, which leaves half of a small model to the text."""
    if given is not None and given >= room:
        raise ConfigError(
            f"`--max-new-tokens` is `{given}`, and text and answer have {room} tokens together; give less"
        )
    return min(usual, max(1, room // 2)) if given is None else given


def _kind(source: Source, task: str | None) -> Kind:
    """What a model is to do: as told, as its artifact says, or as its class and config tell."""
    causal = models.is_causal(source.config)
    kind: Kind | None
    if task is not None:
        check_head(source, get_task(task))
        kind = get_task(task).kind()
    elif source.task is not None:
        kind = recorded_kind(source.task)
    else:
        kind = kind_of_model(source.architecture, source.config)
    if kind is None:
        raise CheckpointError(
            f"`{source.name}` is a `{source.architecture}`, which no kind of task answers for; name one with `--task`, "
            f"such as `{'image-retrieval' if models.sees_images(source.config) else 'retrieval'}` for vectors"
        )
    sentence = SentenceSettings.of(source.name) if kind.embeds else None
    return kind.for_model(causal=causal, sentence=sentence)


def _codec(source: Source, kind: Kind, processor: Any, max_length: int | None) -> TaskCodec:
    config, record = source.config, source.task
    if record is not None and record.kind == kind.name:
        codec = TaskCodec.of_record(record, processor, config)
        length = longest(kind, config, processor, max_length or codec.max_length)
        return TaskCodec(kind, processor, length, codec.labels, codec.columns)
    sentence = kind.settings.get("sentence")
    wanted = max_length or (None if sentence is None else sentence.max_length)
    labels = [str(name) for _, name in sorted((config.id2label or {}).items())] if kind.labelled else None
    return TaskCodec(kind, processor, longest(kind, config, processor, wanted), labels)


def longest(kind: Kind, config: PretrainedConfig, processor: Any, wanted: int | None) -> int:
    """Tokens a text is cut to: as wanted, and no more than model and tokenizer take."""
    if kind.modality == "images":
        return wanted or kind.max_length
    limits = [wanted, models.positions(config), getattr(processor, "model_max_length", None)]
    return min((limit for limit in limits if limit is not None), default=kind.max_length)


def recorded_preset(task: TaskRecord) -> Preset | None:
    """The task of an artifact, if it is known here: somebody's own preset need not be."""
    return get_task(task.name).preset if task.name in known() else None


def recorded_kind(task: TaskRecord) -> Kind:
    """What the model of an artifact has to do."""
    preset = recorded_preset(task)
    return kind_of(task.kind, preset.settings if preset is not None and preset.kind == task.kind else {})


def recorded_columns(task: TaskRecord) -> tuple[str, ...]:
    """What the data of an artifact's task call its texts."""
    given, preset = task.settings.get("text_column"), recorded_preset(task)
    if isinstance(given, str):
        return tuple(name.strip() for name in given.split(","))
    return preset.layouts[0].text if preset is not None and preset.layouts else ()
