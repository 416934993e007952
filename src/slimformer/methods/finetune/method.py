"""Fine-tuning a model on a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.method import Showcase
from slimformer.methods.task import TaskMethod
from slimformer.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from slimformer.methods.finetune.baselines import Baseline
    from slimformer.train import Objective
    from slimformer.train.run import OptimizerChoice


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
    replaces_base = True
    showcase = Showcase("MiniLM, fine-tuned")

    #: What keeps the model close to its base; None for plain fine-tuning.
    baseline: Baseline | None = None

    def check(self) -> None:
        """Refuse a task that the way of keeping close cannot learn."""
        super().check()
        if self.config.keep_close is not None:
            from slimformer.methods.finetune.baselines import read_baseline

            self.baseline = read_baseline(self.config.keep_close)
            self.baseline.check(get_task(str(self.config.task)))

    def prepare(self, model: PreTrainedModel) -> Objective | None:
        """The task's own loss, with a term beside it where one keeps the model close."""
        return None if self.baseline is None else self.baseline.objective(model, self.data.kind, self.config.seed)

    def before_step(self, total: int) -> Callable[[int], None] | None:
        """What the baseline does before each step."""
        return None if self.baseline is None else self.baseline.before_step()

    def after_step(self, total: int) -> Callable[[int], None] | None:
        """What the baseline does after each step."""
        return None if self.baseline is None else self.baseline.after_step(self.model)

    def optimizer(self, total: int) -> OptimizerChoice | None:
        """The baseline's own optimizer."""
        return None if self.baseline is None else self.baseline.optimizer(self.model, total)
