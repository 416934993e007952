"""Measuring a model on a task, the same way during and after training; and whether its head is the one a task needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.anatomy import family_of
from slimformer.artifact.storage.onnx.handler import not_in_torch
from slimformer.counts import check_count
from slimformer.errors import CheckpointError, ConfigError, DataError
from slimformer.inference.codec import longest, recorded_length
from slimformer.inference.door import OpenModel, look_up, open_runnable
from slimformer.inference.runners import TorchRunner, run
from slimformer.models.denoising import has_decoder
from slimformer.models.settings import check_labels
from slimformer.tasks import get_task
from slimformer.tasks.columns import label_names
from slimformer.tasks.options import load_data, with_recorded
from slimformer.views.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import nn
    from transformers import PretrainedConfig

    from slimformer.artifact import TaskRecord
    from slimformer.inference.door import Runnable
    from slimformer.inference.runners import Array, Runner
    from slimformer.inference.source import Source
    from slimformer.tasks import Task, TaskData
    from slimformer.tasks.features import Features
    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.options import TaskOptions


def head_classes(name: str, config: PretrainedConfig, task: Task) -> tuple[str, ...]:
    """The classes that give a model of this family the head a task needs, most usual first; or an error."""
    import transformers

    family = family_of(config.model_type)
    if has_decoder(config):
        raise CheckpointError(
            f"`{name}` is an encoder with a decoder in its blocks, which hides later tokens from it; take the encoder "
            "out with `slimformer adapt --objective tsdae`"
        )
    kind = task.kind().for_model(causal=family.causal)
    if (kind.modality == "images") != models.sees_images(config):
        other = "texts" if kind.modality == "images" else "images"
        raise CheckpointError(
            f"`{name}` is a model for {other} (`{family.name}`), and task `{task.name}` is about {kind.modality}; "
            f"give a model for {kind.modality}"
        )
    if kind.needs_decoder and not family.causal:
        raise CheckpointError(
            f"`{name}` is an encoder (`{family.name}`), and task `{task.name}` needs a decoder; give a decoder"
        )
    mapping = getattr(transformers, kind.head)._model_mapping
    if type(config) not in mapping:
        raise CheckpointError(
            f"`{name}` is a `{family.name}`, for which transformers has no `{kind.head}`, the head of task "
            f"`{task.name}`; give a model of another family"
        )
    classes: Any = mapping[type(config)]
    return tuple(each.__name__ for each in (classes if isinstance(classes, tuple) else (classes,)))


def check_head(source: Source, task: Task) -> None:
    """Refuse a model whose head is another than the task's; embeddings can be had of every model."""
    classes = head_classes(source.name, source.config, task)
    kind = task.kind()
    # The head of pretraining goes by several names; whether it is there shows when it is loaded.
    if kind.embeds or (kind.pretraining and source.manifest is None):
        return
    if source.architecture in classes:
        if kind.means_the_same(source.config):
            return
        raise CheckpointError(
            f"the head of `{source.name}` has {source.config.num_labels} outputs (problem type "
            f"`{source.config.problem_type}`), which mean something else than task `{task.name}` asks for; leave out "
            "`--task`, or give a model that was trained for it"
        )
    raise CheckpointError(
        f"`{source.name}` is a `{source.architecture or 'model'}`, which has no trained head for task `{task.name}`; "
        f"give a `{classes[0]}`, such as `slimformer finetune` makes of it"
    )


def labels_of_head(config: PretrainedConfig, preset: Sequence[str] | None) -> list[str] | None:
    """The labels of a plain checkpoint's head; a preset's labels in the head's order, if they are the same ones."""
    names = label_names(config)
    if names is None or preset is None:
        return names
    spelling = {label.lower(): label for label in preset}
    ordered = [spelling[name.lower()] for name in names if name.lower() in spelling]
    return ordered if len(ordered) == len(names) == len(preset) else None


def fitting_length(given: int | None, data: TaskData, processor: Any, config: PretrainedConfig) -> int | None:
    """Tokens to cut texts to: as given, else the task's own or what model and tokenizer can take.

    Embeddings are an encoder's own affair: a text is cut where the encoder says, whatever it is measured by.
    """
    check_length(given, data.kind, config)
    if data.kind.embeds:
        return longest(data.kind, config, processor, given or recorded_length(data.kind))
    positions = models.positions(config)
    if positions is None or data.kind.modality == "images":
        return given
    return given or min(data.preset.max_length, positions, getattr(processor, "model_max_length", positions))


def check_length(given: int | None, kind: Kind, config: PretrainedConfig) -> None:
    """Refuse a length that a model does not take."""
    positions = models.positions(config)
    if given is not None and positions is not None and kind.modality == "texts" and given > positions:
        raise ConfigError(
            f"`--max-length` is `{given}`, but the model has {positions} positions; give {positions} or less"
        )


def evaluate(
    model: nn.Module, data: TaskData, split: str, features: Features, processor: Any, batch_size: int = 32
) -> dict[str, float]:
    """Measure a model on a prepared split; its training mode is the same afterwards.

    Args:
        model: A model with the head the task needs.
        data: The task's data.
        split: Which split.
        features: What `data.prepare` gave for it.
        processor: The tokenizer or image processor the features were made with.
        batch_size: Items per forward; changes speed and memory only.
    """
    return data.compute_metrics(split, features, predict(model, data, features, processor, batch_size))


def predict(model: nn.Module, data: TaskData, features: Features, processor: Any, batch_size: int = 32) -> Any:
    """A model's outputs for every item in order: an array, or a tuple of arrays."""
    # A copy that shares the tensors: the model may be asked by other threads, or be in training, meanwhile.
    runner = TorchRunner(snapshot(model), data.kind)
    return as_predictions(run(features, data.kind.collator(processor), runner, batch_size))


def as_predictions(outputs: Mapping[str, Array]) -> Any:
    """Outputs as metrics take them: an array, or a tuple of arrays."""
    arrays = tuple(outputs.values())
    return arrays if len(arrays) > 1 else arrays[0]


@dataclass(frozen=True)
class PreparedSplit:
    """A model, and a split of a task made ready for it.

    Args:
        opened: The model as it was opened.
        data: The task's data.
        split: Which split of it.
        features: Its inputs.
    """

    opened: Runnable
    data: TaskData
    split: str
    features: Features

    @property
    def in_torch(self) -> OpenModel:
        """The same model, where it runs in PyTorch; one that does not is refused."""
        if not isinstance(self.opened, OpenModel):
            raise not_in_torch(self.opened.source.name)
        return self.opened

    @property
    def model(self) -> Any:
        """The model that runs: without a head where embeddings are measured."""
        return self.in_torch.runner(self.data.kind).model

    def outputs(self, runner: Runner, batch_size: int = 32) -> dict[str, Array]:
        """What a runner gives for every item in order, by name."""
        return run(self.features, self.data.kind.collator(self.opened.processor), runner, batch_size)

    def metrics(self, outputs: Mapping[str, Array]) -> dict[str, float]:
        """Measure what `outputs` gave."""
        return self.data.compute_metrics(self.split, self.features, as_predictions(outputs))

    def summary(self, metrics: dict[str, float]) -> dict[str, Any]:
        """What was measured, and on what, as JSON types."""
        return {
            "artifact": self.opened.source.name,
            "task": self.data.preset.name,
            "split": self.split,
            "examples": len(self.data[self.split]),
            "metrics": metrics,
            "notes": self.data.notes,
        }


def evaluate_on_task(
    name: str | Path,
    options: TaskOptions,
    split: str = "dev",
    batch_size: int = 32,
    **loading: Any,
) -> dict[str, Any]:
    """Measure a model on a split of a task.

    Args:
        name: An artifact or ONNX; or a folder, Hub name or alias whose model has a trained head of the right kind.
        options: Task and data; what is not given is what an artifact was trained with.
        split: Which split.
        batch_size: Items per forward; changes speed and memory only.
        loading: What else `open_runnable` takes: `base` and `cast_base` of a mask, `check`, `size`, `engine`.
    """
    check_count("batch-size", batch_size)
    ready = prepare_split(name, options, split, **loading)
    return ready.summary(ready.metrics(ready.outputs(ready.opened.runner(ready.data.kind), batch_size)))


def prepare_split(
    name: str | Path,
    options: TaskOptions,
    split: str = "dev",
    opened: Runnable | None = None,
    **loading: Any,
) -> PreparedSplit:
    """Open a model, unless it is open, and make a split of a task ready for it.

    Args:
        name: What `evaluate_on_task` takes.
        options: Task and data.
        split: Which split.
        opened: The model, where it is open already.
        loading: What else `open_runnable` takes.
    """
    source = look_up(name) if opened is None else opened.source
    options, data = load_split(source, options, split)
    opened = opened or open_runnable(source, model_class=data.model_class(), **loading)
    _check_outputs(source, data)
    length = fitting_length(options.max_length, data, opened.processor, source.config)
    return PreparedSplit(opened, data, split, data.prepare(split, opened.processor, length))


def load_split(source: Source, options: TaskOptions, split: str) -> tuple[TaskOptions, TaskData]:
    """Load a split of the data that a model is measured on, once its head is known to fit.

    Args:
        source: The model.
        options: Task and data; what is not given is what an artifact was trained with.
        split: Which split.

    Returns:
        The options with all that is known, and the data.
    """
    config, trained_for = source.config, source.task
    options = _completed(options, trained_for)
    assert options.task is not None
    task = get_task(options.task)
    check_head(source, task)
    if task.kind().labelled and trained_for is None:
        check_labels(config, source.name)
    data = load_data(
        options,
        (split,),
        causal=models.is_causal(config),
        sentence=source.sentence() if task.kind().embeds else None,
        labels=labels_of_head(config, task.preset.labels) if trained_for is None else trained_for.labels,
    )
    return options, data


def _completed(options: TaskOptions, trained_for: TaskRecord | None) -> TaskOptions:
    """Fill in what an artifact knows; columns and language are those of its own task only."""
    if trained_for is not None and options.task is None:
        options = type(options).make({**options.given(), "task": trained_for.name})
    options.require("task", "data")
    assert options.task is not None
    if trained_for is None or get_task(options.task).name != trained_for.name:
        return options
    return with_recorded(options, trained_for.settings)


def _check_outputs(source: Source, data: TaskData) -> None:
    config: Any = source.config
    outputs = config.num_labels
    data.check_head(outputs)
    if (needed := data.config_kwargs().get("num_labels", outputs)) != outputs:
        raise DataError(
            f"the head of `{source.name}` has {outputs} outputs, but task `{data.preset.name}` has {needed} here; "
            "give a model that was trained on this task"
        )
