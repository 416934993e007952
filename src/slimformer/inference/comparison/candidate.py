"""A model that is compared with others: opened once, with the rows it is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError, UsageError
from slimformer.files import as_path
from slimformer.inference.bench import PeakMemory
from slimformer.inference.comparison.cost import WARM_UP, StoredBytes
from slimformer.inference.evaluation import as_predictions, fitting_length, load_split, prepare_split
from slimformer.inference.onnx import OnnxSource
from slimformer.inference.pipeline import open_pipeline
from slimformer.inference.runners import run
from slimformer.registry import STORAGE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.inference.pipeline import TaskPipeline
    from slimformer.inference.runners import Runner
    from slimformer.inference.source import Source
    from slimformer.tasks import TaskData
    from slimformer.tasks.features import Features
    from slimformer.tasks.options import TaskOptions
    from slimformer.tasks.splits import Split

#: What stands between the folder of an elastic model and one of its sizes.
AT = "@"


@dataclass(frozen=True)
class Candidate:
    """A model in memory, and the rows it is measured on as its inputs.

    Args:
        name: As the user gave it.
        source: What it stands for.
        pipeline: What answers requests.
        runner: What computes the outputs that are scored.
        data: The task's data.
        split: Which split of it.
        features: The inputs of its rows.
        stored: Bytes on disk; None where it lies in no folder of this machine.
        parameters: Its weights.
        memory: Bytes that the process grew by while it was opened and answered its first requests.
    """

    name: str
    source: Source
    pipeline: TaskPipeline
    runner: Runner
    data: TaskData
    split: str
    features: Features
    stored: StoredBytes | None
    parameters: int
    memory: int

    @classmethod
    def open(
        cls,
        name: str,
        source: Source,
        options: TaskOptions,
        split: str,
        *,
        check: bool = True,
        engine: str | None = None,
        **base: Any,
    ) -> Candidate:
        """Open a model, and its data.

        Args:
            name: What `split_name` takes.
            source: What it stands for.
            options: Task and data; what is not given is what the model was trained with.
            split: Which split.
            check: Whether an artifact must answer as recorded at saving.
            engine: What runs it, where it is no ONNX file.
            base: Where the base of a mask is, and whether it may have been cast; others need none.
        """
        import transformers

        folder, size = split_name(name)
        options, data = load_split(source, options, split)
        loading = {"check": check, "size": size, **(base if STORAGE.get(source.storage).needs_base else {})}
        asking: dict[str, Any] = {"task": options.task, "max_length": options.max_length, "batch_size": 1}
        if not isinstance(source, OnnxSource):
            asking["engine"] = engine
        getattr(transformers, source.architecture, None)  # imports its code, whose memory is not the model's
        with PeakMemory() as memory:
            pipeline = open_pipeline(folder, **asking, **loading)
            for row in range(min(WARM_UP, len(data[split]))):
                pipeline.answer(data[split].take([row]))
        if pipeline.kind.new_tokens:  # what is scored are the tokens that are there, not those it would go on with
            prepared = prepare_split(folder, options, split, **loading)
            runner: Runner = prepared.opened.runner(data.kind)
            features = prepared.features
        else:
            processor = pipeline.codec.processor
            length = fitting_length(options.max_length, data, processor, source.config)
            runner, features = pipeline.runner, data.prepare(split, processor, length)
        if isinstance(source, OnnxSource):
            stored: StoredBytes | None = StoredBytes(source.bytes)
            parameters = source.parameters
        else:
            computes: Any = runner
            weights = computes.weights
            parameters = sum(each.numel() for each in weights)
            needed = {name: value for name, value in loading.items() if name in base}
            stored = StoredBytes.of(folder, **needed) if size is None else StoredBytes.of_weights(weights)
        return cls(name, source, pipeline, runner, data, split, features, stored, parameters, memory.growth)

    @property
    def rows(self) -> Split:
        """The examples."""
        return self.data[self.split]

    def predictions(self, batch_size: int) -> Any:
        """What the model gives for every row in order."""
        collate = self.data.kind.collator(self.pipeline.codec.processor)
        return as_predictions(run(self.features, collate, self.runner, batch_size))

    def answer(self, row: int) -> Any:
        """The answer to one row, from its text on."""
        return self.pipeline.answer(self.rows.take([row]))


def split_name(name: str) -> tuple[str, str | None]:
    """A model and the size it is to be used at: `FOLDER@S` is size S of the elastic model in a folder."""
    folder, at, size = name.rpartition(AT)
    if at and size and not as_path(name).exists() and as_path(folder).is_dir():
        return folder, size
    return name, None


def check_names(names: Sequence[str | Path]) -> list[str]:
    """Names as text; refused are none at all, and one that is there twice."""
    named = [str(name) for name in names]
    if not named:
        raise UsageError("no model given; name at least one artifact, folder, Hub name or alias")
    for name in named:
        if named.count(name) > 1:
            raise UsageError(f"`{name}` is named twice; name each model once")
    return named


def check_same_rows(candidates: Sequence[Candidate]) -> None:
    """Refuse models that were trained for something else than the first, or that read other rows."""
    first = candidates[0]
    for other in candidates[1:]:
        if other.data.kind.name != first.data.kind.name:
            raise UsageError(
                f"`{other.name}` is for {other.data.kind.name} and `{first.name}` for {first.data.kind.name}; compare "
                "models of one kind of task, or name it with `--task`"
            )
        if sorted(other.data.labels or ()) != sorted(first.data.labels or ()):
            raise DataError(
                f"the labels of `{other.name}` are `{_listed(other)}` and those of `{first.name}` `{_listed(first)}`; "
                "compare models that were trained for the same labels"
            )
        if list(other.rows.origins) != list(first.rows.origins):
            raise DataError(
                f"`{other.name}` is measured on {len(other.rows)} rows and `{first.name}` on {len(first.rows)} others; "
                "give `--text-column`, `--label-column` and what else says how the data are read, for all alike"
            )


def _listed(candidate: Candidate) -> str:
    labels = [str(label) for label in candidate.data.labels or ()]
    return ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "")
