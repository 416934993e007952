"""Requests in, answers out: the one way from what a user asks to inputs of a model, and from its outputs to answers.

Everything here is in NumPy; what runs the model is a callable on arrays. So an engine without torch is used like a
model in torch, and any number of threads may share a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from slimformer import models
from slimformer.artifact.task import recorded_kind
from slimformer.config import check_count
from slimformer.errors import CheckpointError, ConfigError, DataError, SizeError
from slimformer.inference.codec import TaskCodec, longest, recorded_length
from slimformer.inference.door import Source, look_up, open_model
from slimformer.inference.evaluation import check_head, check_length
from slimformer.inference.routing import chosen_route
from slimformer.inference.runners import SizedRunner, TorchGenerator, TorchRunner, run
from slimformer.models.sentence import SentenceSettings
from slimformer.models.settings import check_labels
from slimformer.sizes import Elastic, is_elastic
from slimformer.tasks import get_task
from slimformer.tasks.kinds import kind_of_model
from slimformer.tasks.splits import Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from slimformer.inference.codec import Encoded, TaskRequest
    from slimformer.inference.runners import Runner
    from slimformer.sizes.elastic import Sized
    from slimformer.tasks.kinds.kind import Answer, Kind
    from slimformer.tasks.splits import Example

#: Requests in memory at a time, in batches: enough to sort by length, few enough for any number of lines.
BATCHES = 16
#: Characters of requests in memory at a time: their tokens take some forty times as many bytes.
CHARACTERS = 1 << 21


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


class Chunk:
    """Requests that are answered together.

    Args:
        kind: What the model has to do.
        limit: Texts that the model reads for them at most; the first request is taken whatever it takes.
    """

    def __init__(self, kind: Kind, limit: int) -> None:
        self.kind = kind
        self.limit = limit
        #: What is known so far: why a request failed, or None where it waits for its answer.
        self.replies: list[Any] = []
        self.examples: list[Example] = []
        self.origins: list[tuple[str, int]] = []
        self.places: list[int] = []
        self._widest = self._characters = 0

    def has_room(self, example: Example) -> bool:
        """Whether one more can be taken; requests of a chunk are filled up to as many texts as the widest has."""
        rows = max(self._widest, self.kind.rows(example)) * (len(self.examples) + 1)
        fits = rows <= self.limit and self._characters + self._size(example) <= CHARACTERS
        return fits or not self.examples

    def add(self, request: TaskRequest, example: Example) -> None:
        """Take a request."""
        self.places.append(len(self.replies))
        self.replies.append(None)
        self.examples.append(example)
        self.origins.append((request.file, request.line))
        self._widest = max(self._widest, self.kind.rows(example))
        self._characters += self._size(example)

    def _size(self, example: Example) -> int:
        return self.kind.rows(example) * sum(_characters(value) for value in example.values())


def _characters(value: Any) -> int:
    """Characters of a text, or of the texts of a list."""
    if isinstance(value, (list, tuple)):
        return sum(map(_characters, value))
    return len(value) if isinstance(value, str) else 0


@dataclass(frozen=True)
class TaskPipeline:
    """A model that answers requests.

    Args:
        codec: How it is asked and answers.
        runner: What computes.
        batch_size: Items per forward; changes speed and memory only.
        sizes: The sizes of an elastic model, where they were kept.
        fingerprint: Content hash of an artifact's weights.

    Example:
        >>> pipeline = open_pipeline("out/sst2")
        >>> pipeline(["a fine film"])
        [{'label': 'positive', 'probability': 0.98, 'scores': {'negative': 0.02, 'positive': 0.98}}]
    """

    codec: TaskCodec
    runner: Runner
    batch_size: int = 32
    sizes: Elastic | None = None
    fingerprint: str | None = None

    def at(self, size: Sized) -> TaskPipeline:
        """The same at one size of an elastic model; pipelines of all sizes share the weights and may run at once."""
        if self.sizes is None:
            raise SizeError(f"size `{size}` is asked for, and the pipeline kept none; open it with `keep_sizes`")
        return replace(self, runner=SizedRunner(self.runner, self.sizes, size))

    @property
    def kind(self) -> Kind:
        """What the model has to do."""
        return self.codec.kind

    def __call__(self, requests: Sequence[Any]) -> list[Answer]:
        """Answer all requests, in their order; one that cannot be answered is an error."""
        return [] if isinstance(requests, list | tuple) and not requests else self._answer(self.codec.encode(requests))

    def answer(self, split: Split) -> list[Answer]:
        """Answer the examples of a split as requests, whatever labels they have."""
        return self._answer(self.codec.prepare(split))

    def stream(self, requests: Iterable[TaskRequest], ahead: int | None = None) -> Iterator[Reply]:
        """Answer any number of requests, in their order and in constant memory; those that fail say why.

        Args:
            requests: What is asked.
            ahead: Requests that are read before the first of them is answered, fewer where they are long; some batches
                unless given, 1 to answer each at once.
        """
        chunk = Chunk(self.kind, self.batch_size * BATCHES)
        for request in requests:
            try:
                example = self.codec.example(request)
            except DataError as error:
                chunk.replies.append(Failure(request.line, str(error)))
            else:
                if not chunk.has_room(example):
                    yield from self._replies(chunk)
                    chunk = Chunk(self.kind, chunk.limit)
                chunk.add(request, example)
            if len(chunk.replies) >= (ahead or chunk.limit):
                yield from self._replies(chunk)
                chunk = Chunk(self.kind, chunk.limit)
        yield from self._replies(chunk)

    def _answer(self, encoded: Encoded) -> list[Answer]:
        return self.codec.decode(encoded, run(encoded.features, self.codec.collate, self.runner, self.batch_size))

    def _replies(self, chunk: Chunk) -> list[Reply]:
        split = Split(chunk.examples, chunk.origins)
        for place, reply in zip(chunk.places, self._halves(split), strict=True):
            chunk.replies[place] = reply
        return chunk.replies

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
    cast_base: bool = False,
    check: bool = True,
    size: str | None = None,
    route: str | Path | None = None,
    draft: str | None = None,
    keep_sizes: bool = False,
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    batch_size: int = 32,
) -> TaskPipeline:
    """Open any model for requests: an artifact, a mask or a checkpoint.

    Args:
        name: An artifact, a folder, a Hub name or an alias.
        task: What it is to do, if that is something else than what it was made for, such as `retrieval` for vectors.
        base: Where the base of a mask is; where it was at saving when not given.
        cast_base: Whether that base may have been cast to 16 bits, which changes answers a little.
        check: Whether an artifact must answer as recorded at saving; its sums are compared in any case.
        size: Which size of an elastic model, such as `S` or one for each block; by default the largest.
        route: A file of `slimformer route`, which chooses a size of an elastic model for each request; not with `size`.
        draft: A smaller size of an elastic decoder that writes ahead of the one in use; changes speed only.
        keep_sizes: Whether the sizes of an elastic model are needed too, for `TaskPipeline.at`.
        max_length: Tokens a text is cut to; by default as the model was trained, or as many as it takes.
        max_new_tokens: Tokens that a decoder adds at most.
        batch_size: Items per forward; changes speed and memory only.
    """
    import transformers

    check_count("batch-size", batch_size)
    for flag, value in (("max-length", max_length), ("max-new-tokens", max_new_tokens)):
        check_count(flag, 1 if value is None else value)
    chosen = chosen_route(route, size)
    source = look_up(name)
    kind = _kind(source, task)
    if chosen is not None:
        chosen.check_kind(kind)
    _check_generation(source, kind, max_new_tokens, draft)
    check_length(max_length, kind, source.config)
    model_class = getattr(transformers, kind.head)
    loading: dict[str, Any] = {"base": base, "cast_base": cast_base, "check": check, "size": size}
    keep_sizes = keep_sizes or chosen is not None or draft is not None
    opened = open_model(source, model_class=model_class, keep_sizes=keep_sizes, **loading)
    if draft is not None:
        Elastic.of(opened.model).check_draft(draft)
    if kind.new_tokens:
        room = longest(kind, source.config, opened.processor, max_length)
        codec = TaskCodec.generating(kind, opened.processor, room, max_new_tokens)
        return TaskPipeline(codec, TorchGenerator(opened.model, codec.kind, opened.processor, draft), batch_size)
    codec = _codec(source, kind, opened.processor, max_length)
    runner: Runner = TorchRunner(opened.model.base_model if kind.embeds else opened.model, kind)
    runner = runner if chosen is None else chosen.open(opened, runner, kind)
    sizes = Elastic.of(opened.model) if chosen is None and is_elastic(opened.model) else None
    fingerprint = None if source.manifest is None else source.manifest.model.fingerprint
    return TaskPipeline(codec, runner, batch_size, sizes, fingerprint)


def _check_generation(source: Source, kind: Kind, max_new_tokens: int | None, draft: str | None) -> None:
    """Refuse settings of generated text where none is generated, and a draft where there is no smaller size."""
    for flag, value in (("max-new-tokens", max_new_tokens), ("draft", draft)):
        if value is not None and not kind.new_tokens:
            raise ConfigError(f"`--{flag}` is `{value}`, and `{source.name}` generates no text; leave it out")
    if draft is not None and not source.is_nested:
        raise SizeError(f"`--draft` is `{draft}`, and `{source.name}` has one size only; leave it out")


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
            f"`{source.name}` is a `{source.architecture}`{_outputs(source)}, which no kind of task answers for; name "
            "one with `--task`, "
            f"such as `{'image-retrieval' if models.sees_images(source.config) else 'retrieval'}` for vectors"
        )
    sentence = SentenceSettings.of(source.name) if kind.embeds else None
    return kind.for_model(causal=causal, sentence=sentence)


def _outputs(source: Source) -> str:
    """What the head's outputs are said to mean, as a message adds it; such as one number, of a head with two."""
    problem = getattr(source.config, "problem_type", None)
    return "" if problem is None else f" of {source.config.num_labels} outputs and problem type `{problem}`"


def _codec(source: Source, kind: Kind, processor: Any, max_length: int | None) -> TaskCodec:
    config, record = source.config, source.task
    if record is not None and record.kind == kind.name:
        codec = TaskCodec.of_record(record, processor, config)
        length = longest(kind, config, processor, max_length or codec.max_length)
        return TaskCodec(kind, processor, length, codec.labels, codec.columns)
    if kind.labelled:
        check_labels(config, source.name)
    labels = [str(name) for _, name in sorted((config.id2label or {}).items())] if kind.labelled else None
    return TaskCodec(kind, processor, longest(kind, config, processor, max_length or recorded_length(kind)), labels)
