"""Distilling a teacher into a student on text or images without labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError, UsageError
from slimformer.methods.distill.config import SIZES, DistillConfig
from slimformer.methods.manner import configure
from slimformer.methods.place import check_writable, is_main

if TYPE_CHECKING:
    from slimformer.methods.distill.result import DistillResult


def distill(config: DistillConfig | None = None, **settings: Any) -> DistillResult:
    """Distil a teacher into a student of any shape.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `DistillConfig` and of `Manner` (resume, overwrite, quiet, command).

    Example:
        >>> result = distill(teacher="minilm", layers=3, hidden=192, corpus=["reviews.txt"], max_steps=1000)
        >>> result.losses["qq"]
    """
    from slimformer.methods.distill.run import run_distillation

    config, manner = configure(DistillConfig, config, settings)
    config.require("teacher", "corpus", *(["out"] if config.task is not None else []))
    if config.student is None and not any(getattr(config, name) for name in SIZES):
        raise UsageError(
            "the student would be as large as its teacher; give `--layers`, `--hidden`, …, or a checkpoint with "
            "`--student`"
        )
    if config.report is not None:
        _check_report(Path(config.report))
    result = run_distillation(config, manner)
    if config.report is not None and is_main():
        from slimformer.methods.distill.reporting import write_report

        write_report(config, result)
    return result


def _check_report(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"`--report` is `{path}`, a folder; give a file such as `{path / 'report.html'}`")
    check_writable(path, "--report")
