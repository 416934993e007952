"""Fine-tuning a model on a task."""

from __future__ import annotations

from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.method import Showcase
from slimformer.methods.task import TaskMethod


class Finetune(TaskMethod[FinetuneConfig]):
    """Fine-tune all weights of a model on a task: the baseline every method is compared with.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `FinetuneConfig` and of `RunOptions` (resume, overwrite, quiet, command).

    Example:
        >>> result = finetune(model="minilm", task="classification", data="reviews", out="sentiment")
        >>> result.metrics["accuracy"]
    """

    name = "finetune"
    config_class = FinetuneConfig
    headless = True
    showcase = Showcase("MiniLM, fine-tuned")
