"""`slimformer finetune`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from slimformer.cli.flags import ConfigFile, Json, Overwrite, Quiet, Resume, command_line
from slimformer.cli.output import print_json, print_result
from slimformer.methods.finetune.config import FinetuneConfig


def finetune_model(
    *,
    settings: Annotated[FinetuneConfig, Parameter(name="*")] = FinetuneConfig(),  # noqa: B008 (frozen)
    config: ConfigFile = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune a model on a task and save it as an artifact."""
    from slimformer.methods.finetune import finetune

    checked = FinetuneConfig.read(config, settings.given())
    checked.require("model", "task", "data", "out")
    result = finetune(checked, resume=resume, overwrite=overwrite, quiet=quiet, command=command_line())
    if as_json:
        print_json(result.summary())
    else:
        print_result(result.summary())
