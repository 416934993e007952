"""`--report FILE.html`: what a distillation did, on one page."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from slimformer import __version__, models
from slimformer.methods.distill.analysis import compare_sizes, loss_curves, trial_scores
from slimformer.report import Facts, Figure, Page, Table, write_page

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.methods.distill.config import DistillConfig
    from slimformer.methods.distill.method import DistillResult


def write_report(config: DistillConfig, result: DistillResult) -> Path:
    """Write the page that the settings ask for, and return where it is."""
    import torch
    import transformers

    assert config.teacher is not None
    assert config.report is not None
    blocks: list[Table | Figure | Facts] = []
    if result.folder is not None:
        length = min(128, models.positions(result.model.config) or 128)
        compared: dict[str, str | Path] = {"teacher": config.teacher, "student": result.folder}
        blocks.append(compare_sizes(compared, length=length, seconds=1.0))
    if any("loss" in entry for entry in result.log):
        blocks.append(loss_curves(result.log))
    if result.trials:
        blocks.append(trial_scores(result.trials))
    if result.task is not None:
        metrics = [[name, f"{value:.4f}"] for name, value in result.task.metrics.items()]
        blocks.append(Table(f"Fine-tuned on {config.task}", ["metric", "dev"], metrics))
    given = {
        name: ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in config.given().items()
    }
    versions = f"slimformer {__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    made = {"steps": f"{result.steps}", "training": f"{result.seconds:.0f} s"}
    blocks.append(
        Facts("How it was made", {**given, **made, "versions": f"{versions}, Python {platform.python_version()}"})
    )
    lead = (
        f"A student with {result.model.num_parameters():,} parameters learned from block {result.teacher_layer} "
        f"of {config.teacher}."
    )
    return write_page(Page("Distillation", lead, blocks), config.report)
