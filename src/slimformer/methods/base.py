"""The base of a run: whether it can be started from, whether it fits the task, and what becomes of its head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.errors import CheckpointError, ConfigError
from slimformer.inference.evaluation import head_classes
from slimformer.tasks.columns import label_names
from slimformer.tasks.kinds import has_task_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.inference.door import Source
    from slimformer.tasks import Task, TaskData


def check_storage(source: Source, accepted: Sequence[str]) -> None:
    """Refuse a base whose weights are stored in a way that a method cannot start from."""
    if source.storage in accepted:
        return
    if source.storage == "mask":
        raise CheckpointError(
            f"`{source.name}` is a mask on a base and no checkpoint; merge the two first: "
            f"slimformer merge {source.name} --out PLAIN"
        )
    raise CheckpointError(
        f"`{source.name}` holds quantized weights, which are not trained on; give the float model it was made from"
    )


def check_trainable(source: Source, task: Task, accepted: Sequence[str]) -> None:
    """Refuse, before any work, a task that cannot be trained or that the base has no head for."""
    head_classes(source.name, source.config, task)
    check_storage(source, accepted)
    untrainable = task.kind().untrainable
    if untrainable is not None:
        raise ConfigError(f"task `{task.name}` {untrainable}")


def load_base(source: Source, data: TaskData, processor: Any, seed: int) -> tuple[PreTrainedModel, list[str]]:
    """Load the base with the head that fits, and say what became of a head it had."""
    from transformers import set_seed

    foreign = _foreign_head(source.config, data)
    set_seed(seed)  # a new head is drawn here
    model = models.load_model(source.name, data.model_class(), new_head=foreign is not None, **data.config_kwargs())
    models.name_padding(model, processor)
    note = f"the head of `{source.name}` was made for {foreign}; a new one is trained"
    return model, [] if foreign is None else [note]


def _foreign_head(config: PretrainedConfig, data: TaskData) -> str | None:
    """What a base's head was trained for, if that is another task than this one; its outputs mean something else."""
    architecture, kind = (config.architectures or [""])[0], data.kind
    if kind.pretraining or not has_task_head(architecture):
        return None
    if not kind.owns(architecture):
        return f"another kind of task (`{architecture}`)"
    if not kind.means_the_same(config):
        return f"another kind of task (problem type `{config.problem_type}`)"
    names = label_names(config)
    if data.labels is None or names is None or names == data.labels:
        return None
    return f"the labels {', '.join(f'`{name}`' for name in names[:5])}{', …' if len(names) > 5 else ''}"
