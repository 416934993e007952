"""`slimformer distill`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from slimformer.cli.flags import RunFlags
from slimformer.cli.output import print_line, print_result
from slimformer.methods.distill.config import DistillConfig


def distill_model(
    *,
    settings: Annotated[DistillConfig, Parameter(name="*")] = DistillConfig(),  # noqa: B008 (frozen)
    flags: Annotated[RunFlags, Parameter(name="*")] = RunFlags(),  # noqa: B008 (frozen)
) -> None:
    """Distil a teacher into a student of any shape, on text or images without labels."""
    from slimformer.methods.distill import distill

    checked = DistillConfig.read(flags.config, settings.given())
    checked.require("teacher", "corpus", "out")
    flags.show(distill(checked, **flags.manner()).summary(), _print_student)


def _print_student(summary: Mapping[str, Any]) -> None:
    """Write what came out, in a few lines."""
    losses = ", ".join(f"{name} {value:.4f}" for name, value in summary["losses"].items())
    print_line(f"learned from block {summary['teacher_layer']} of the teacher: {losses}")
    for trial in summary["trials"]:
        print_line(f"  tried block {trial['layer']} for {trial['steps']} steps: {trial['score']:.4f}")
    print_line(f"{summary['parameters']:,} parameters after {summary['steps']} steps in {summary['seconds']:.0f} s")
    print_line(f"saved in {summary['out']}")
    if summary["task"] is not None:
        print_result(summary["task"])
