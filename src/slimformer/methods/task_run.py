"""A run on a task: everything around the training itself that methods on tasks share.

The order matters: settings, the place for the result, data and base are checked before training, and nothing
half written is left behind.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer import artifact, models
from slimformer.anatomy import family_of
from slimformer.inference.evaluation import evaluate
from slimformer.inference.heads import fitting_length
from slimformer.methods.base import check_trainable, load_base, read_base
from slimformer.methods.place import Place, is_main
from slimformer.methods.record import counts_of, finished, step_of
from slimformer.tasks import get_task
from slimformer.tasks.options import RECORDED, load_data
from slimformer.train import train

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.artifact.storage.handler import Storage
    from slimformer.methods.manner import Manner
    from slimformer.tasks import TaskData
    from slimformer.tasks.features import Features
    from slimformer.tasks.options import TaskOptions
    from slimformer.train import Objective, TrainingOptions


@dataclass(frozen=True)
class TaskResult:
    """What a run on a task made.

    Args:
        model: The trained model, in eval mode.
        processor: Its tokenizer or image processor.
        metrics: Metrics of that very model on the split it was chosen on.
        split: That split.
        folder: Where it was saved; None if it was not.
        steps: Optimizer steps taken.
        kept_step: The step whose weights were kept.
        seconds: Time spent training.
        log: Log entries of the run.
        notes: What was done to data or model that a user should know.
    """

    model: PreTrainedModel
    processor: Any
    metrics: dict[str, float]
    split: str
    folder: Path | None
    steps: int
    kept_step: int
    seconds: float
    log: list[dict[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            "out": None if self.folder is None else str(self.folder),
            "split": self.split,
            "metrics": self.metrics,
            "steps": self.steps,
            "kept_step": self.kept_step,
            "seconds": round(self.seconds, 2),
            "processes": int(os.environ.get("WORLD_SIZE", "1")),
            "notes": self.notes,
        }


def run_on_task(
    method: str,
    config: TaskOptions,
    training: TrainingOptions,
    manner: Manner,
    *,
    base: str,
    out: str | None,
    prepare: Callable[[PreTrainedModel], Objective | None] | None = None,
    finish: Callable[[PreTrainedModel], None] | None = None,
    storage: Callable[[], Storage] | None = None,
) -> TaskResult:
    """Train a base on a task with a method, evaluate what came out and save it as an artifact.

    Args:
        method: Name of the method, for the record.
        config: The task and its data; all settings of the run, for the record.
        training: How to train.
        manner: How to go about it.
        base: The checkpoint to start from.
        out: Folder for the result; None to keep it in memory only.
        prepare: Puts views on the model and returns the objective; None to fine-tune.
        finish: Turns the trained model into the one that is evaluated and saved, such as baking its views.
        storage: How the result is stored; asked when it is finished.
    """
    config.require("task", "data")
    settings = config.model_dump(mode="json", exclude={"out"})
    place = Place.of(out)
    done = finished(place, method, settings) if manner.resume else None
    if done is not None:
        return _told_again(done, place)
    place.check(settings, manner)
    start = _prepare(config, base, training.seed)
    if not manner.quiet:
        show_notes(start.notes)
    model, data, processor = start.model, start.data, start.processor
    objective = None if prepare is None else prepare(model)
    settings = {**settings, "data_digest": digest(start.train)}
    place.check(settings, manner)
    with place.working(settings) as folder:
        trained = train(
            model,
            training,
            start.train,
            data.collator(processor),
            folder,
            objective=objective,
            evaluation=lambda current: evaluate(current, data, "dev", start.dev, processor),
            primary=data.primary_metric,
            greater_is_better=data.greater_is_better,
            lengths=start.train.lengths,
            quiet=manner.quiet,
        )
        if finish is not None:
            finish(model)
        model.eval()
        metrics = evaluate(model, data, "dev", start.dev, processor)
        if place.out is not None and is_main():
            artifact.save(
                place.out,
                model,
                processor=processor,
                step=step_of(method, settings, training.seed, trained, manner.command),
                base=base,
                metrics={f"{data.preset.name}/dev": metrics},
                task=task_record(data, config),
                overwrite=manner.overwrite,
                storage=None if storage is None else storage(),
            )
    return TaskResult(
        model,
        processor,
        metrics,
        "dev",
        place.out,
        trained.steps,
        trained.kept_step,
        trained.seconds,
        trained.log,
        start.notes,
    )


def _told_again(done: artifact.Loaded, place: Place) -> TaskResult:
    """The result of a run that had ended before."""
    (metrics,) = done.manifest.metrics.values()
    counts = counts_of(done.manifest.steps[-1])
    return TaskResult(done.model, done.processor, dict(metrics), "dev", place.out, seconds=0.0, **counts)


@dataclass(frozen=True)
class _Start:
    """Everything a run needs before its first step."""

    model: PreTrainedModel
    processor: Any
    data: TaskData
    train: Features
    dev: Features
    notes: list[str]


def _prepare(config: TaskOptions, base: str, seed: int) -> _Start:
    """Read and check base and data, the cheap things first."""
    assert config.task is not None
    model_config = read_base(base)
    check_trainable(base, model_config, get_task(config.task))
    data = load_data(config, ("train", "dev"), causal=family_of(model_config.model_type).causal)
    processor = models.load_processor(base)
    length = fitting_length(config.max_length, data, processor, model_config)
    train_features = data.prepare("train", processor, length, seed)
    # The masks of dev are always the same ones, so that runs can be compared and measured again.
    dev_features = data.prepare("dev", processor, length)
    model, notes = load_base(base, model_config, data, processor, seed)
    return _Start(model, processor, data, train_features, dev_features, [*data.notes, *notes])


def task_record(data: TaskData, options: TaskOptions) -> dict[str, Any]:
    """What an artifact has to remember of its task, so that it can be evaluated without being told again."""
    settings = {name: getattr(options, name) for name in RECORDED if getattr(options, name) is not None}
    decided = {name: data.kind.settings[name] for name in RECORDED if data.kind.settings.get(name) is not None}
    return {
        "name": data.preset.name,
        "kind": data.kind.name,
        "labels": data.labels,
        "settings": {**decided, **settings},
    }


def digest(features: Features) -> str:
    """A hash of what a run trains on, so that it is not resumed on other data unnoticed, and for the record.

    Texts are hashed whole; of images, which would have to be decoded for it, some hundred spread over all.
    """
    summed = hashlib.sha256(str(len(features)).encode())
    stride = 1 if "input_ids" in features[0] else max(1, len(features) // 500)
    for index in range(0, len(features), stride):
        for name, value in sorted(features[index].items()):
            for part in value if isinstance(value, list) else [value]:  # choices are of different lengths
                array = np.ascontiguousarray(part)
                summed.update(f"{name} {array.dtype} {array.shape}".encode())
                summed.update(array.tobytes())
    return summed.hexdigest()


def show_notes(notes: list[str]) -> None:
    """Tell the user what was done to data or model that may not be expected."""
    for note in notes if is_main() else ():
        sys.stderr.write(f"note: {note}\n")
