"""Fine-tuning a model on a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.methods.finetune.config import FinetuneConfig

if TYPE_CHECKING:
    from slimformer.methods.task_run import TaskResult


def finetune(
    config: FinetuneConfig | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    command: str | None = None,
    **settings: Any,
) -> TaskResult:
    """Fine-tune all weights of a model on a task.

    Args:
        config: The settings; those given by name win over it.
        resume: Go on with an unfinished run, or start one if there is none.
        overwrite: Replace a result that is there.
        quiet: Say nothing while training.
        command: The command line, for the record.
        settings: Fields of `FinetuneConfig`.

    Example:
        >>> result = finetune(model="minilm", task="classification", data="reviews", out="sentiment")
        >>> result.metrics["accuracy"]
    """
    from slimformer.methods.task_run import run_on_task

    if config is None or settings:
        config = FinetuneConfig.make({**(config.given() if config is not None else {}), **settings})
    config.require("model")
    assert config.model is not None
    return run_on_task(
        "finetune",
        config,
        config,
        base=config.model,
        out=config.out,
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
        command=command,
    )
