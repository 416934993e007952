"""Measuring a model on a task: an artifact, or any checkpoint that has the head the task needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer import artifact, models
from slimformer.anatomy import family_of
from slimformer.errors import ArtifactError, CheckpointError, ConfigError, DataError
from slimformer.evaluation import evaluate
from slimformer.methods.base import (
    EMBEDDING,
    MODELLING,
    fitting_length,
    head_classes,
    is_artifact,
    label_names,
    name_padding,
    read_base,
)
from slimformer.methods.task_run import load_data
from slimformer.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig

    from slimformer.artifact import TaskRecord
    from slimformer.methods.task_options import TaskOptions
    from slimformer.tasks import Task, TaskData


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
    trained_for = artifact.read_manifest(name).task if is_artifact(name) else None
    config = read_base(str(name))
    options = _completed(options, trained_for)
    assert options.task is not None
    task = get_task(options.task)
    architectures = head_classes(str(name), config, task)
    _check_architecture(name, config, task, architectures)
    labels = trained_for.labels if trained_for is not None else _head_labels(config, task.preset.labels)
    data = load_data(options, (split,), causal=family_of(config.model_type).causal, labels=labels)
    model, processor = _load(name, data, base)
    _check_outputs(name, model, data)
    features = data.prepare(split, processor, fitting_length(options.max_length, data, processor, config))
    return {
        "artifact": str(name),
        "task": options.task,
        "split": split,
        "examples": len(data[split]),
        "metrics": evaluate(model, data, split, features, processor, batch_size),
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


def _check_architecture(name: str | Path, config: PretrainedConfig, task: Task, wanted: Sequence[str]) -> None:
    """Refuse a model whose head is another than the task's; embeddings can be had of every model."""
    found = (config.architectures or ["model"])[0]
    kind = task.preset.kind
    # The head of pretraining goes by several names; whether it is there shows when it is loaded.
    if kind in EMBEDDING or found in wanted or (kind in MODELLING and not is_artifact(name)):
        return
    raise CheckpointError(
        f"`{name}` is a `{found}`, which has no trained head for task `{task.name}`; give a `{wanted[0]}`, "
        "such as `slimformer finetune` makes of it"
    )


def _head_labels(config: PretrainedConfig, preset: Sequence[str] | None) -> list[str] | None:
    """The labels of a plain checkpoint's head; a preset's labels in the head's order, if they are the same ones."""
    names = label_names(config)
    if names is None or preset is None:
        return names
    spelling = {label.lower(): label for label in preset}
    ordered = [spelling[name.lower()] for name in names if name.lower() in spelling]
    return ordered if len(ordered) == len(names) == len(preset) else None


def _load(name: str | Path, data: TaskData, base: str | None) -> tuple[Any, Any]:
    if not is_artifact(name):
        processor = models.load_processor(name)
        model = models.load_model(name, data.model_class(), whole=True).eval()
        name_padding(model, processor)
        return model, processor
    loaded = artifact.load(name, check=False, base=base)  # `read_base` has compared the sums
    if loaded.processor is None:
        raise ArtifactError(f"artifact `{name}` has no tokenizer or image processor; save it again with its processor")
    return (loaded.model.base_model if data.kind in EMBEDDING else loaded.model), loaded.processor


def _check_outputs(name: str | Path, model: Any, data: TaskData) -> None:
    outputs = model.config.num_labels
    data.check_head(outputs)
    wanted = data.config_kwargs().get("num_labels", outputs)
    if wanted != outputs:
        raise DataError(
            f"the head of `{name}` has {outputs} outputs, but task `{data.preset.name}` has {wanted} here; "
            "give a model that was trained on this task"
        )
