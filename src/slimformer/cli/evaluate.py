"""`slimformer evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from slimformer.cli.output import ConfigFile, Json, Quiet, SizeFlags, print_json, print_line, print_notes
from slimformer.tasks.options import TaskOptions


def evaluate_model(
    artifact: str,
    *,
    options: Annotated[TaskOptions, Parameter(name="*")] = TaskOptions(),  # noqa: B008 (frozen)
    split: str = "dev",
    batch_size: int = 32,
    flags: Annotated[SizeFlags, Parameter(name="*")] = SizeFlags(),  # noqa: B008 (frozen)
    config: ConfigFile = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure an artifact on a task; what is not given is taken from what it was trained for.

    Args:
        artifact: The folder of the artifact; or a folder, a Hub name or an alias whose model has a head for the task.
        split: Which split: train, dev or test.
        batch_size: Items per forward; changes speed and memory only.
    """
    from slimformer.inference.evaluation import evaluate_on_task

    result = evaluate_on_task(artifact, TaskOptions.read(config, options.given()), split, batch_size, **asdict(flags))
    if not quiet:
        print_notes(result["notes"])
    if as_json:
        print_json(result)
    else:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in result["metrics"].items())
        print_line(f"{artifact} on {result['task']}/{split}, {result['examples']} examples: {metrics}")
