"""Requests in, answers out: the one way from what a user asks to inputs of a model, and from its outputs to answers.

Everything here is in NumPy; what runs the model is a callable on arrays. So an engine without torch is used like a
model in torch, and any number of threads may share a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from slimformer import models
from slimformer.artifact.task import recorded_kind
from slimformer.counts import check_count
from slimformer.errors import CheckpointError, ConfigError, DataError, SizeError
from slimformer.inference.codec import TaskCodec, longest, recorded_length
from slimformer.inference.door import OpenModel, look_up, open_runnable
from slimformer.inference.evaluation import check_head, check_length
from slimformer.inference.native import OpenNativeDecoder, is_native, refuse_with_engine
from slimformer.inference.onnx import OnnxSource, onnx_file, refuse_flags
from slimformer.inference.requests import Chunk
from slimformer.inference.routing import chosen_route
from slimformer.inference.runners import SizedRunner, TorchGenerator, run
from slimformer.models.settings import check_labels
from slimformer.sizes import Elastic, is_elastic
from slimformer.tasks import get_task
from slimformer.tasks.kinds import kind_of_model
from slimformer.tasks.splits import Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from slimformer.inference.codec import Encoded, TaskRequest
    from slimformer.inference.door import Runnable
    from slimformer.inference.routing import Route
    from slimformer.inference.runners import Runner
    from slimformer.inference.source import Source
    from slimformer.sizes.naming import Sized
    from slimformer.tasks.kinds.kind import Answer, Kind

#: Requests in memory at a time, in batches: enough to sort by length, few enough for any number of lines.
BATCHES = 16


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
    engine: str | None = None,
) -> TaskPipeline:
    """Open any model for requests: an artifact, a mask, a checkpoint or ONNX.

    Args:
        name: An artifact, a folder, a Hub name, an alias or an ONNX file with its tokenizer beside it.
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
        engine: `native` for the native engine; torch when not given.
    """
    import transformers

    check_count("batch-size", batch_size)
    for flag, value in (("max-length", max_length), ("max-new-tokens", max_new_tokens)):
        check_count(flag, 1 if value is None else value)
    if onnx_file(name) is not None:
        refuse_flags(name, base=base, cast_base=cast_base, size=size, route=route, draft=draft)
    if is_native(engine):
        refuse_with_engine(route=route)
    chosen = chosen_route(route, size)
    source = look_up(name)
    kind = kind_for(source, task)
    if chosen is not None:
        chosen.check_kind(kind)
    _check_generation(source, kind, max_new_tokens, draft)
    check_length(max_length, kind, source.config)
    model_class = getattr(transformers, kind.head)
    loading: dict[str, Any] = {"base": base, "cast_base": cast_base, "check": check, "size": size}
    keep_sizes = keep_sizes or chosen is not None or draft is not None
    opened = open_runnable(source, model_class=model_class, keep_sizes=keep_sizes, engine=engine, **loading)
    if kind.new_tokens and isinstance(opened, OpenModel | OpenNativeDecoder):
        if draft is not None and isinstance(opened, OpenModel):
            Elastic.of(opened.model).check_draft(draft)
        room = longest(kind, source.config, opened.processor, max_length)
        codec = TaskCodec.generating(kind, opened.processor, room, max_new_tokens)
        if isinstance(opened, OpenNativeDecoder):
            return TaskPipeline(codec, opened.writer(codec.kind, draft), batch_size)
        return TaskPipeline(codec, TorchGenerator(opened.model, codec.kind, opened.processor, draft), batch_size)
    codec = codec_for(source, kind, opened.processor, max_length)
    return TaskPipeline(codec, *_runner(opened, kind, chosen, batch_size))


def _runner(
    opened: Runnable, kind: Kind, route: Route | None, batch_size: int
) -> tuple[Runner, int, Elastic | None, str | None]:
    """What computes, with what else a pipeline holds: the batch size, the sizes that were kept, the fingerprint."""
    runner: Runner = opened.runner(kind)
    manifest = opened.source.manifest
    fingerprint = None if manifest is None else manifest.model.fingerprint
    if not isinstance(opened, OpenModel):
        return runner, batch_size, None, fingerprint
    if route is not None:
        return route.open(opened, runner, kind), batch_size, None, fingerprint
    return runner, batch_size, Elastic.of(opened.model) if is_elastic(opened.model) else None, fingerprint


def _check_generation(source: Source, kind: Kind, max_new_tokens: int | None, draft: str | None) -> None:
    """Refuse settings of generated text where none is generated, and a draft where there is no smaller size."""
    if kind.new_tokens and isinstance(source, OnnxSource):
        raise CheckpointError(
            f"`{source.name}` is a decoder in ONNX, which has no memory of the tokens before and writes no text here; "
            "ask the model it was exported from"
        )
    for flag, value in (("max-new-tokens", max_new_tokens), ("draft", draft)):
        if value is not None and not kind.new_tokens:
            raise ConfigError(f"`--{flag}` is `{value}`, and `{source.name}` generates no text; leave it out")
    if draft is not None and not source.is_nested:
        raise SizeError(f"`--draft` is `{draft}`, and `{source.name}` has one size only; leave it out")


def kind_for(source: Source, task: str | None = None) -> Kind:
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
    return kind.for_model(causal=causal, sentence=source.sentence() if kind.embeds else None)


def _outputs(source: Source) -> str:
    """What the head's outputs are said to mean, as a message adds it; such as one number, of a head with two."""
    problem = getattr(source.config, "problem_type", None)
    return "" if problem is None else f" of {source.config.num_labels} outputs and problem type `{problem}`"


def codec_for(source: Source, kind: Kind, processor: Any, max_length: int | None = None) -> TaskCodec:
    """How a model is asked, by its artifact, its file or its config."""
    config, record = source.config, source.task
    if record is not None and record.kind == kind.name:
        codec = TaskCodec.of_record(record, processor, config)
        length = longest(kind, config, processor, max_length or codec.max_length)
        return TaskCodec(kind, processor, length, codec.labels, codec.columns)
    if kind.labelled:
        check_labels(config, source.name)
    labels = [str(name) for _, name in sorted((config.id2label or {}).items())] if kind.labelled else None
    return TaskCodec(kind, processor, longest(kind, config, processor, max_length or recorded_length(kind)), labels)
