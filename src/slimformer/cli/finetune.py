"""`slimformer finetune`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from slimformer.cli.flags import RunFlags
from slimformer.cli.output import print_result
from slimformer.methods.finetune.config import FinetuneConfig


def finetune_model(
    *,
    settings: Annotated[FinetuneConfig, Parameter(name="*")] = FinetuneConfig(),  # noqa: B008 (frozen)
    flags: Annotated[RunFlags, Parameter(name="*")] = RunFlags(),  # noqa: B008 (frozen)
) -> None:
    """Fine-tune a model on a task and save it as an artifact."""
    from slimformer.methods.finetune import finetune

    checked = FinetuneConfig.read(flags.config, settings.given())
    checked.require("model", "task", "data", "out")
    flags.show(finetune(checked, **flags.manner()).summary(), print_result)
