"""Methods that learn a task: what they share, from base and data to metrics on dev."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import numpy as np

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.artifact.storage.precision import check_metric
from slimformer.errors import ConfigError
from slimformer.inference.door import look_up
from slimformer.inference.evaluation import evaluate, fitting_length
from slimformer.methods.method import AnyConfig, Method
from slimformer.methods.origin import Pretrained, read_alike
from slimformer.methods.output import RunResult
from slimformer.methods.run import counts_of
from slimformer.methods.streaming import StreamedFeatures
from slimformer.tasks import get_task
from slimformer.tasks.options import load_data, task_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer import artifact
    from slimformer.methods.origin import Origin
    from slimformer.tasks import Task, TaskData
    from slimformer.tasks.features import Features
    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.options import TaskOptions
    from slimformer.train import Objective, Trained
    from slimformer.train.run import OptimizerChoice


def check_trainable(origin: Origin, task: Task, accepted: Sequence[str], *, headless: bool = False) -> None:
    """Refuse, before any work, a task that cannot be trained or that there is no head for.

    Args:
        origin: What is trained.
        task: The task.
        accepted: How a base may be stored.
        headless: Whether the method trains models without a head too.
    """
    origin.check(task, accepted)
    untrainable = task.kind().untrainable
    if untrainable is not None and not headless:
        raise ConfigError(f"task `{task.name}` {untrainable}")


def rest_pooler(model: PreTrainedModel) -> None:
    """Leave out of training what embeddings do not pass; several processes wait for every gradient there is to be."""
    pooler = Anatomy.of(model).pooler
    if pooler is not None:
        pooler.module.requires_grad_(False)


def own_objective(model: PreTrainedModel, kind: Kind) -> Objective | None:
    """The task's own loss where a model computes none itself, as one without a head; else None."""
    if kind.loss_term == "labels":
        return None
    from slimformer.objectives import Models, TermObjective, build_terms, parse_terms

    terms = build_terms(parse_terms(kind.loss_term), Models(Anatomy.of(model)), labelled=True)
    return TermObjective(terms, model, {})


@dataclass(frozen=True)
class TaskResult(RunResult):
    """What a run on a task made; the metrics are those of the split the model was chosen on.

    Args:
        split: That split.
        primary: The metric that chooses between models.
    """

    split: str = "dev"
    primary: str = ""

    @property
    def score(self) -> tuple[str, float] | None:
        """The primary metric and its value."""
        return self.primary, self.metrics[self.primary]

    def summary(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {**super().summary(), "split": self.split}

    def lines(self) -> list[str]:
        """The result as a person reads it."""
        first, *rest = super().lines()
        return [f"{self.split}: {first}", *rest]


class TaskMethod(Method[AnyConfig], Generic[AnyConfig]):
    """A method that trains a base on a task. Without views and objective of its own it fine-tunes all weights."""

    learns_from: ClassVar[Any] = "task"
    required: ClassVar[tuple[str, ...]] = ("model", "task", "data", "out")
    #: Whether it trains models without a head too: embeddings.
    headless: ClassVar[bool] = False

    data: TaskData
    features: dict[str, Features]
    #: Tokens that texts are cut to; None where they are not.
    length: int | None
    objective: Objective | None = None

    @property
    def base(self) -> str:
        """The checkpoint the run starts from."""
        base: str = self.config.model  # type: ignore[attr-defined]
        return base

    def unscored(self) -> str | None:
        """None: a task is measured."""
        return None

    def prepare(self, model: PreTrainedModel) -> Objective | None:
        """Put views on the model and return the objective; None for the task's own loss."""
        return None

    def origin(self) -> Origin:
        """What the weights are before training."""
        return Pretrained(look_up(self.base))

    def load_data(self, origin: Origin) -> TaskData:
        """What is learned from and measured on."""
        options = self.data_options
        assert options.task is not None
        sentence = origin.sentence() if get_task(options.task).kind().embeds else None
        return load_data(options, ("train", "dev"), causal=models.is_causal(origin.config), sentence=sentence)

    @cached_property
    def data_options(self) -> TaskOptions:
        """Where the data lie and how they are read: as told, else as the base read the same data for the same task."""
        config: Any = self.config
        options: TaskOptions = config
        return options if config.model is None else read_alike(config.model, options)

    def training_features(self, length: int | None) -> Features:
        """What the model is fed in training."""
        config: Any = self.config
        return self.data.prepare("train", self.processor, length, config.seed, training=True)

    def start(self) -> str:
        """Read base and data, and make the model ready to train."""
        config: Any = self.config
        origin = self.origin()
        check_trainable(origin, get_task(config.task), self.accepts, headless=self.headless)
        self.data = self.load_data(origin)
        self.processor = origin.processor(self.data)
        length = self.length = fitting_length(self.data_options.max_length, self.data, self.processor, origin.config)
        # The masks of dev are always the same ones, so that runs can be compared and measured again.
        self.features = {
            "train": self.training_features(length),
            "dev": self.data.prepare("dev", self.processor, length),
        }
        self.model, notes = origin.model(self.data, self.processor, config.seed)
        self.notes += [*self.data.notes, *notes]
        if self.data.kind.embeds:
            rest_pooler(self.model)
        self.objective = self.prepare(self.model) or own_objective(self.model, self.data.kind)
        return digest(self.features["train"], self.features["dev"])

    @property
    def steps_of_epoch(self) -> int:
        """Optimizer steps of one pass over the data."""
        batch_size: int = self.config.batch_size  # type: ignore[attr-defined]
        return math.ceil(len(self.features["train"]) / batch_size)

    def resolved(self) -> dict[str, Any]:
        """How long texts are, which columns are read, and how many steps are taken."""
        from slimformer.train import count_steps

        config: Any = self.config
        total = count_steps(config, self.steps_of_epoch)
        return {
            **super().resolved(),
            **task_record(self.data, self.data_options)["settings"],
            "max_length": self.length,
            "max_steps": total,
            "eval_every": min(self.steps_of_epoch, total),
        }

    def before_step(self, total: int) -> Callable[[int], None] | None:
        """What is done before each optimizer step of so many, with the step's number; None for nothing."""
        return None

    def after_step(self, total: int) -> Callable[[int], None] | None:
        """What is done after each of them, with the same number; None for nothing."""
        return None

    def optimizer(self, total: int) -> OptimizerChoice | None:
        """What takes these steps; None for AdamW."""
        return None

    @property
    def chooses_by(self) -> str:
        """The metric that decides which weights are kept."""
        return self.data.primary_metric

    def train(self, folder: Path) -> Trained:
        """Train on the task, keeping the weights that are best on dev."""
        from slimformer.train import count_steps, train

        examples = self.features["train"]
        total = count_steps(self.config, self.steps_of_epoch)  # type: ignore[arg-type]
        return train(
            self.model,
            self.config,  # type: ignore[arg-type]
            examples,
            self.data.collator(self.processor),
            folder,
            objective=self.objective,
            evaluation=self._evaluate,
            primary=self.chooses_by,
            greater_is_better=self.data.greater_is_better,
            lengths=examples.lengths,
            items=self.data.kind.items,
            before_step=self.before_step(total),
            after_step=self.after_step(total),
            optimizer=self.optimizer(total),
            quiet=self.options.quiet,
        )

    def finish(self) -> None:
        """Nothing: what was trained is what is saved."""

    def measure(self, trained: Trained) -> dict[str, float]:
        """Metrics on dev of the model as it will be saved."""
        self.model.eval()
        return self._evaluate(self.model)

    def measure_rounded(self, metrics: dict[str, float]) -> dict[str, float]:
        """Metrics on dev once more; too large a loss is refused."""
        rounded, primary = self._evaluate(self.model), self.chooses_by
        check_metric(primary, metrics[primary], rounded[primary], greater_is_better=self.data.greater_is_better)
        return rounded

    def describe(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Metrics and the task."""
        task = task_record(self.data, self.data_options)
        return {"metrics": {f"{self.data.preset.name}/dev": metrics}, "task": task}

    def result(self, folder: Path | None, metrics: dict[str, float], trained: Trained) -> TaskResult:
        """What the caller gets."""
        return TaskResult(**vars(super().result(folder, metrics, trained)), primary=self.data.primary_metric)

    def reload(self, done: artifact.Loaded, folder: Path) -> TaskResult:
        """The result of a run that had ended before."""
        (metrics,) = done.manifest.metrics.values()
        counts = counts_of(done.manifest.steps[-1])
        record = done.manifest.task
        assert record is not None
        primary = get_task(record.name).metrics(record.labels)[0]
        return TaskResult(done.model, done.processor, folder, dict(metrics), **counts, primary=primary)

    def _evaluate(self, model: Any) -> dict[str, float]:
        return evaluate(model, self.data, "dev", self.features["dev"], self.processor)


def digest(*splits: Features) -> str:
    """A hash of what a run trains on and is chosen by, so that it is not resumed on other data unnoticed.

    Texts are hashed whole; of images, which would have to be decoded for it, some hundred spread over all; of a stream,
    which may be larger than the memory, what it follows from.
    """
    total = hashlib.sha256()
    for features in splits:
        if isinstance(features, StreamedFeatures):
            total.update(features.identity)
            continue
        total.update(str(len(features)).encode())
        stride = 1 if "input_ids" in features[0] else max(1, len(features) // 500)
        for index in range(0, len(features), stride):
            _add(total, features[index])
    return total.hexdigest()


def _add(total: hashlib._Hash, inputs: Mapping[str, Any]) -> None:
    for name, value in sorted(inputs.items()):
        for part in value if isinstance(value, list) else [value]:  # choices are of different lengths
            array = np.ascontiguousarray(part)
            total.update(f"{name} {array.dtype} {array.shape}".encode())
            total.update(array.tobytes())
