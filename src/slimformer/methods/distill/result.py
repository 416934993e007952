"""What a distillation made."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.methods.distill.trials import Trial
    from slimformer.methods.task_run import TaskResult

#: What stands in a log entry beside losses.
BESIDE = ("epoch", "step", "grad_norm", "learning_rate")


def losses_in(entry: dict[str, float]) -> dict[str, float]:
    """The loss of a log entry and its terms."""
    return {name: value for name, value in entry.items() if name not in BESIDE}


@dataclass(frozen=True)
class DistillResult:
    """What a distillation made.

    Args:
        model: The student in eval mode: a base model, or one with its teacher's head after learning soft labels.
        processor: Its tokenizer or image processor: the teacher's.
        folder: Where it was saved; None if it was not.
        teacher_layer: The teacher's block that was learned from.
        losses: The losses as last logged.
        steps: Optimizer steps taken.
        seconds: Time spent training.
        log: Log entries of the run.
        trials: What `--teacher-layer auto` tried.
        task: The result of fine-tuning the student, if that was asked for.
        notes: What was done that a user should know.
    """

    model: PreTrainedModel
    processor: Any
    folder: Path | None
    teacher_layer: int
    losses: dict[str, float]
    steps: int
    seconds: float
    log: list[dict[str, float]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    task: TaskResult | None = None
    notes: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            "out": None if self.folder is None else str(self.folder),
            "teacher_layer": self.teacher_layer,
            "losses": self.losses,
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "processes": int(os.environ.get("WORLD_SIZE", "1")),
            "parameters": self.model.num_parameters(),
            "trials": [vars(trial) for trial in self.trials],
            "task": None if self.task is None else self.task.summary(),
            "notes": self.notes,
        }
