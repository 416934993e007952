"""Fine-tuning a model on a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.manner import configure

if TYPE_CHECKING:
    from slimformer.methods.task_run import TaskResult


def finetune(config: FinetuneConfig | None = None, **settings: Any) -> TaskResult:
    """Fine-tune all weights of a model on a task.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `FinetuneConfig` and of `Manner` (resume, overwrite, quiet, command).

    Example:
        >>> result = finetune(model="minilm", task="classification", data="reviews", out="sentiment")
        >>> result.metrics["accuracy"]
    """
    from slimformer.methods.task_run import run_on_task

    config, manner = configure(FinetuneConfig, config, settings)
    config.require("model")
    assert config.model is not None
    return run_on_task("finetune", config, config, manner, base=config.model, out=config.out)
