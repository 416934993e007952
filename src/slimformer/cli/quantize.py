"""`slimformer quantize`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from slimformer.cli.flags import RunFlags
from slimformer.cli.output import print_result
from slimformer.methods.quantize.config import QuantizeConfig


def quantize_model(
    *,
    settings: Annotated[QuantizeConfig, Parameter(name="*")] = QuantizeConfig(),  # noqa: B008 (frozen)
    flags: Annotated[RunFlags, Parameter(name="*")] = RunFlags(),  # noqa: B008 (frozen)
) -> None:
    """Train a fine-tuned model on with a few levels per weight, and save it as an artifact."""
    from slimformer.methods.quantize import quantize

    checked = QuantizeConfig.read(flags.config, settings.given())
    checked.require("model", "task", "data", "out")
    flags.show(quantize(checked, **flags.manner()).summary(), print_result)
