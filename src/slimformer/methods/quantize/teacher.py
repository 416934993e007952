"""The float model a run starts and learns from: the one given, if its head knows the task, or one trained first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from slimformer import models
from slimformer.errors import ConfigError
from slimformer.inference.heads import head_classes
from slimformer.methods.base import read_base
from slimformer.methods.finetune import FinetuneConfig, finetune
from slimformer.methods.place import Place
from slimformer.methods.task_run import show_notes
from slimformer.tasks import get_task
from slimformer.tasks.options import load_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig

    from slimformer.methods.manner import Manner
    from slimformer.methods.quantize.config import QuantizeConfig
    from slimformer.tasks import Task

#: Learning rate of a teacher that has to be trained first; to choose another, fine-tune it with `finetune`.
TEACHER_LR = 1e-4


def find_or_train(config: QuantizeConfig, manner: Manner, scratch: str | None) -> str:
    """The fine-tuned model to start from; a bare base is fine-tuned, beside the result.

    Args:
        config: The settings of the run.
        manner: How to go about it.
        scratch: Where the fine-tuned model goes if the result is not saved.
    """
    assert config.model is not None
    assert config.task is not None
    task = get_task(config.task)
    if config.kd != "none" and not task.kind().exclusive:
        raise ConfigError(
            f"`kd` is `{config.kd}`, whose soft labels are for labels that exclude each other, and task `{task.name}` "
            "has any number of them; give `kd` `none`"
        )
    model_config = read_base(config.model)
    if _knows(config, task, model_config):
        return config.model
    place = Place.of(config.out)
    finished = manner.resume and place.out is not None and place.out.exists()
    if not finished:
        place.check(config.model_dump(mode="json", exclude={"out"}), manner)
    if place.out is not None:
        folder = place.out.with_name(f"{place.out.name}.finetuned")
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"`{config.model}` has no head for task `{task.name}`, and several processes cannot share one that is kept "
            "in memory; give `out`, or fine-tune it first"
        )
    else:
        folder = Path(scratch or ".") / "finetuned"
    if not manner.quiet:
        show_notes([f"`{config.model}` has no head for task `{task.name}`; it is fine-tuned first, into `{folder}`"])
    given = {name: value for name, value in config.given().items() if name in FinetuneConfig.model_fields}
    tuned = FinetuneConfig.make({**given, "lr": TEACHER_LR, "out": str(folder)})
    finetune(tuned, resume=manner.resume, overwrite=manner.overwrite, quiet=manner.quiet, command=manner.command)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()  # one process writes what all are about to read
    return str(folder)


def _knows(config: QuantizeConfig, task: Task, model_config: PretrainedConfig) -> bool:
    """Whether a checkpoint's head was trained for this very task, as far as can be seen."""
    assert config.model is not None
    classes = head_classes(config.model, model_config, task)
    kind = task.kind()
    if not kind.accepts((model_config.architectures or [""])[0], classes):
        return False
    labels: Sequence[str] | None = task.preset.labels
    if labels is None and kind.labelled:
        labels = load_data(config, ("train", "dev"), causal=models.is_causal(model_config)).labels
    return kind.head_fits(model_config, labels)
