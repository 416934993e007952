"""A split of a task, made ready once to measure many models on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer import artifact, models
from slimformer.errors import ArtifactError
from slimformer.inference.evaluation import evaluate, fitting_length, predict
from slimformer.tasks.options import TaskOptions, load_data, with_recorded

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from slimformer.tasks import TaskData
    from slimformer.tasks.features import Features


@dataclass(frozen=True)
class Measure:
    """One split of a task, ready for models that read and answer alike."""

    data: TaskData
    split: str
    features: Features
    processor: Any

    @classmethod
    def of(cls, folder: str | Path, options: TaskOptions, split: str = "dev") -> Measure:
        """Make a split ready for an artifact; what the options leave open is what it was trained with."""
        loaded = artifact.load(folder)
        task = loaded.manifest.task
        if task is None:
            raise ArtifactError(f"artifact `{folder}` does not say what it was made for; give one that was trained")
        options = with_recorded(TaskOptions.make({"task": task.name, **options.given()}), task.settings)
        options.require("task", "data")
        config = models.load_config(folder)
        data = load_data(options, (split,), causal=models.is_causal(config), labels=task.labels)
        length = fitting_length(options.max_length, data, loaded.processor, config)
        return cls(data, split, data.prepare(split, loaded.processor, length), loaded.processor)

    @property
    def metric(self) -> str:
        """The metric that counts."""
        return self.data.primary_metric

    @property
    def sign(self) -> int:
        """1 where more of that metric is better, else -1."""
        return 1 if self.data.greater_is_better else -1

    def outputs(self, model: nn.Module) -> Any:
        """What a model gives for every item."""
        return predict(model, self.data, self.features, self.processor)

    def score(self, outputs: Any) -> dict[str, float]:
        """Metrics of outputs."""
        return self.data.compute_metrics(self.split, self.features, outputs)

    def value(self, model: nn.Module) -> float:
        """The metric that counts, of a model."""
        return evaluate(model, self.data, self.split, self.features, self.processor)[self.metric]
