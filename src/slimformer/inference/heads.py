"""Whether a model has the head a task needs, which labels its outputs have, and how many tokens it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.anatomy import family_of
from slimformer.errors import CheckpointError, ConfigError
from slimformer.tasks.labels import label_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig

    from slimformer.inference.door import Source
    from slimformer.tasks import Task, TaskData
    from slimformer.tasks.kinds.kind import Kind


def head_classes(name: str, config: PretrainedConfig, task: Task) -> tuple[str, ...]:
    """The classes that give a model of this family the head a task needs, most usual first; or an error."""
    import transformers

    family = family_of(config.model_type)
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
    if kind.embeds or source.architecture in classes or (kind.pretraining and source.manifest is None):
        return
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
    """Tokens to cut texts to: as given, else the task's own or what model and tokenizer can take."""
    check_length(given, data.kind, config)
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
