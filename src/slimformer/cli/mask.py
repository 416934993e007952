"""`slimformer mask`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from slimformer.cli.flags import RunFlags
from slimformer.cli.output import print_result
from slimformer.methods.mask.config import MaskConfig


def mask_model(
    *,
    settings: Annotated[MaskConfig, Parameter(name="*")] = MaskConfig(),  # noqa: B008 (frozen)
    flags: Annotated[RunFlags, Parameter(name="*")] = RunFlags(),  # noqa: B008 (frozen)
) -> None:
    """Learn which weights of a base to keep for a task: one bit for each, in a small file on top of the base."""
    from slimformer.methods.mask import mask

    checked = MaskConfig.read(flags.config, settings.given())
    checked.require("model", "task", "data", "out")
    flags.show(mask(checked, **flags.manner()).summary(), print_result)
