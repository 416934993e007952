"""Measuring a model on a task, the same way during and after training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.utils import parametrize

from slimformer import models
from slimformer.errors import ConfigError, DataError
from slimformer.inference.door import look_up, open_model
from slimformer.inference.heads import check_head, fitting_length, labels_of_head
from slimformer.inference.runners import TorchRunner, run
from slimformer.models.sentence import SentenceSettings
from slimformer.tasks import get_task
from slimformer.tasks.options import load_data

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from slimformer.artifact import TaskRecord
    from slimformer.tasks import TaskData
    from slimformer.tasks.features import Features
    from slimformer.tasks.options import TaskOptions


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
    was_training = model.training
    model.eval()
    try:
        # Weights seen through views are the same for every batch, so they are computed once.
        with parametrize.cached():
            outputs = run(features, data.kind.collator(processor), TorchRunner(model, data.kind), batch_size)
    finally:
        model.train(was_training)
    arrays = tuple(outputs.values())
    return arrays if len(arrays) > 1 else arrays[0]


def evaluate_on_task(
    name: str | Path,
    options: TaskOptions,
    split: str = "dev",
    batch_size: int = 32,
    base: str | None = None,
) -> dict[str, Any]:
    """Measure a model on a split of a task.

    Args:
        name: An artifact; or a folder, a Hub name or an alias whose model has a trained head of the right kind.
        options: Task and data; what is not given is what an artifact was trained with.
        split: Which split.
        batch_size: Items per forward; changes speed and memory only.
        base: Where the base of a mask is; where it was at saving when not given.
    """
    if batch_size < 1:
        raise ConfigError(f"`--batch-size` is `{batch_size}`; give 1 or more")
    source = look_up(name)
    config, trained_for = source.config, source.task
    options = _completed(options, trained_for)
    assert options.task is not None
    task = get_task(options.task)
    check_head(source, task)
    data = load_data(
        options,
        (split,),
        causal=models.is_causal(config),
        sentence=SentenceSettings.of(name) if task.kind().embeds else None,
        labels=labels_of_head(config, task.preset.labels) if trained_for is None else trained_for.labels,
    )
    opened = open_model(source, model_class=data.model_class(), base=base)
    model = opened.model.base_model if data.kind.embeds else opened.model
    _check_outputs(source.name, model, data)
    features = data.prepare(split, opened.processor, fitting_length(options.max_length, data, opened.processor, config))
    return {
        "artifact": str(name),
        "task": options.task,
        "split": split,
        "examples": len(data[split]),
        "metrics": evaluate(model, data, split, features, opened.processor, batch_size),
        "notes": data.notes,
    }


def _completed(options: TaskOptions, trained_for: TaskRecord | None) -> TaskOptions:
    """Fill in what an artifact knows; columns and language are those of its own task only."""
    if trained_for is not None and options.task is None:
        options = type(options).make({**options.given(), "task": trained_for.name})
    options.require("task", "data")
    assert options.task is not None
    if trained_for is None or get_task(options.task).name != trained_for.name:
        return options
    return type(options).make({**trained_for.settings, **options.given()})


def _check_outputs(name: str, model: Any, data: TaskData) -> None:
    outputs = model.config.num_labels
    data.check_head(outputs)
    wanted = data.config_kwargs().get("num_labels", outputs)
    if wanted != outputs:
        raise DataError(
            f"the head of `{name}` has {outputs} outputs, but task `{data.preset.name}` has {wanted} here; "
            "give a model that was trained on this task"
        )
