"""The base of a run: whether it fits the task, whether it is unharmed, and what becomes of its head."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.artifact.layout import MASK
from slimformer.errors import CheckpointError, ConfigError
from slimformer.inference.door import look_up
from slimformer.inference.heads import head_classes
from slimformer.tasks.kinds import has_task_head
from slimformer.tasks.labels import label_names

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.tasks import Task, TaskData


def read_base(name: str) -> PretrainedConfig:
    """The config of a base; an artifact that was harmed since it was saved is refused."""
    return look_up(name).config


def refuse_mask(name: str) -> None:
    """Refuse the folder of a mask where weights are needed."""
    if (Path(name).expanduser() / MASK).is_file():
        raise CheckpointError(
            f"`{name}` is a mask on a base and no checkpoint; merge the two first: slimformer merge {name} --out PLAIN"
        )


def check_trainable(name: str, config: PretrainedConfig, task: Task) -> None:
    """Refuse, before any work, a task that cannot be trained or that the base has no head for."""
    head_classes(name, config, task)
    refuse_mask(name)
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(
            f"`{name}` holds quantized weights, which are not trained on; give the float model it was made from"
        )
    untrainable = task.kind().untrainable
    if untrainable is not None:
        raise ConfigError(f"task `{task.name}` {untrainable}")


def load_base(
    base: str, config: PretrainedConfig, data: TaskData, processor: Any, seed: int
) -> tuple[PreTrainedModel, list[str]]:
    """Load the base with the head that fits, and say what became of a head it had."""
    from transformers import set_seed

    foreign = _foreign_head(config, data)
    set_seed(seed)  # a new head is drawn here
    model = models.load_model(base, data.model_class(), new_head=foreign is not None, **data.config_kwargs())
    models.name_padding(model, processor)
    return model, [] if foreign is None else [f"the head of `{base}` was made for {foreign}; a new one is trained"]


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
