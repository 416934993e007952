"""Settings of fine-tuning."""

from __future__ import annotations

from slimformer.tasks.options import BaseOptions, TaskOptions
from slimformer.train.options import TrainingOptions


class FinetuneConfig(TrainingOptions, TaskOptions, BaseOptions):
    """Fine-tune all weights of a model on a task: the baseline every method is compared with."""
