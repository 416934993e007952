"""A run on a task: everything around the training itself that methods on tasks share.

The order matters: settings, the place for the result, data and base are checked before training, and nothing
half written is left behind. While a run is unfinished its checkpoints lie beside the result, in `OUT.training`.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import artifact, checkpoint
from slimformer.anatomy import family_of
from slimformer.errors import TrainingError
from slimformer.evaluation import evaluate, item_length
from slimformer.tasks import get_task
from slimformer.train import check_folder, prepare_folder, remove_folder, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from slimformer.methods.task_options import TaskOptions
    from slimformer.tasks import TaskData
    from slimformer.train import Objective, Trained, TrainingOptions


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

    def summary(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            "out": None if self.folder is None else str(self.folder),
            "split": self.split,
            "metrics": self.metrics,
            "steps": self.steps,
            "kept_step": self.kept_step,
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class Place:
    """Where the result of a run goes, and where the run works until then."""

    out: Path | None
    training: Path

    @classmethod
    def of(cls, out: str | None) -> Place:
        """The places of a run; a run without `out` works in a temporary folder."""
        if out is None:
            return cls(None, Path(tempfile.mkdtemp(prefix="slimformer-")))
        path = Path(out).expanduser()
        return cls(path, path.with_name(f"{path.name}.training"))

    def check(self, settings: dict[str, Any], resume: bool, overwrite: bool) -> None:
        """Refuse, before any work, a place that is taken."""
        if self.out is None:
            return
        check_folder(self.training, settings, resume)
        if self.out.exists() and not overwrite and not (self.out.is_dir() and not any(self.out.iterdir())):
            raise TrainingError(f"`{self.out}` exists; choose another `--out`, or add `--overwrite` to replace it")
        if not self.out.absolute().parent.exists():
            self.out.absolute().parent.mkdir(parents=True)


def run_on_task(
    method: str,
    config: TaskOptions,
    training: TrainingOptions,
    *,
    base: str,
    out: str | None,
    prepare: Callable[[PreTrainedModel], Objective | None] | None = None,
    finish: Callable[[PreTrainedModel], None] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    command: str | None = None,
) -> TaskResult:
    """Train a base on a task with a method, evaluate what came out and save it as an artifact.

    Args:
        method: Name of the method, for the record.
        config: The task and its data; all settings of the run, for the record.
        training: How to train.
        base: The checkpoint to start from.
        out: Folder for the result; None to keep it in memory only.
        prepare: Puts views on the model and returns the objective; None to fine-tune.
        finish: Turns the trained model into the one that is evaluated and saved, such as baking its views.
        resume: Whether to go on with an unfinished run.
        overwrite: Whether a result that is there may be replaced.
        quiet: Whether to say nothing while training.
        command: The command line, for the record.
    """
    config.require("task", "data")
    settings = config.model_dump(mode="json", exclude={"out"})
    place = Place.of(out)
    done = _finished(place, method, settings) if resume else None
    if done is not None:
        return done
    place.check(settings, resume, overwrite)
    model_config = checkpoint.load_config(base)
    data = load_data(config, ("train", "dev"), causal=family_of(model_config.model_type).causal)
    processor = checkpoint.load_processor(base)
    features = {split: data.prepare(split, processor, config.max_length, training.seed) for split in ("train", "dev")}
    model = _load_base(base, data, processor, training.seed)
    objective = None if prepare is None else prepare(model)
    if _is_main():
        prepare_folder(place.training, settings)
    trained = train(
        model,
        training,
        features["train"],
        data.collator(processor),
        place.training,
        objective=objective,
        evaluation=lambda current: evaluate(current, data, "dev", features["dev"], processor),
        primary=data.primary_metric,
        greater_is_better=data.greater_is_better,
        lengths=[item_length(features["train"][index]) for index in range(len(features["train"]))],
        quiet=quiet,
    )
    if finish is not None:
        finish(model)
    model.eval()
    metrics = evaluate(model, data, "dev", features["dev"], processor)
    if _is_main():
        if place.out is not None:
            artifact.save(
                place.out,
                model,
                processor=processor,
                step=_step(method, settings, training.seed, trained, command),
                base=base,
                metrics={f"{config.task}/dev": metrics},
                task=task_record(data, config),
                overwrite=overwrite,
            )
        remove_folder(place.training)
    return TaskResult(
        model, processor, metrics, "dev", place.out, trained.steps, trained.kept_step, trained.seconds, trained.log
    )


def evaluate_artifact(folder: str, options: TaskOptions, split: str, batch_size: int) -> dict[str, Any]:
    """Measure an artifact on a task; settings that are not given are those it was trained with."""
    manifest = artifact.read_manifest(folder)
    trained_for = manifest.task
    known = {} if trained_for is None else {"task": trained_for.name, **trained_for.settings}
    options = type(options).make({**known, **options.given()})
    options.require("task", "data")
    loaded = artifact.load(folder)
    causal = family_of(loaded.model.config.model_type).causal
    data = load_data(options, (split,), causal=causal, labels=None if trained_for is None else trained_for.labels)
    features = data.prepare(split, loaded.processor, options.max_length)
    metrics = evaluate(loaded.model, data, split, features, loaded.processor, batch_size)
    return {
        "artifact": str(folder),
        "task": options.task,
        "split": split,
        "examples": len(data[split]),
        "metrics": metrics,
        "notes": data.notes,
    }


def load_data(
    options: TaskOptions, splits: tuple[str, ...], *, causal: bool = False, labels: list[str] | None = None
) -> TaskData:
    """Load the splits a run needs; a language model's objective follows from the model."""
    assert options.task is not None
    task = get_task(options.task)
    modelling = task.preset.kind == "language-modelling"
    return task.load(
        options.data,
        splits,
        text_column=options.text_column,
        label_column=options.label_column,
        limit=options.limit,
        labels=labels,
        language=options.language,
        objective=("causal" if causal else "masked") if modelling else None,
    )


def task_record(data: TaskData, options: TaskOptions) -> dict[str, Any]:
    """What an artifact has to remember of its task, so that it can be evaluated without being told again."""
    kept = ("text_column", "label_column", "language", "max_length")
    settings = {name: getattr(options, name) for name in kept if getattr(options, name) is not None}
    return {"name": data.preset.name, "kind": data.kind, "labels": data.labels, "settings": settings}


def _load_base(base: str, data: TaskData, processor: Any, seed: int) -> PreTrainedModel:
    from transformers import set_seed

    if (Path(checkpoint.resolve(base)) / "slimformer.json").exists():
        artifact.read_manifest(checkpoint.resolve(base))
    set_seed(seed)  # the new head is drawn here
    model = checkpoint.load_model(base, data.model_class(), **data.config_kwargs())
    if getattr(model.config, "pad_token_id", None) is None and hasattr(processor, "pad_token_id"):
        # Decoders with a classification head look for the last token that is not padding.
        model.config.pad_token_id = (
            processor.pad_token_id if processor.pad_token_id is not None else processor.eos_token_id
        )
    return model


def _finished(place: Place, method: str, settings: dict[str, Any]) -> TaskResult | None:
    """The result of a run that had ended before it was asked to resume, if it is this very run's."""
    if place.out is None or not (place.out / "slimformer.json").exists():
        return None
    loaded = artifact.load(place.out)
    step = loaded.manifest.steps[-1]
    if step.method != method or {**step.config, "out": None} != {**settings, "out": None, **_counts(step.config)}:
        return None
    remove_folder(place.training)
    (metrics,) = loaded.manifest.metrics.values()
    counts = _counts(step.config)
    return TaskResult(
        loaded.model, loaded.processor, dict(metrics), "dev", place.out, counts["steps"], counts["kept_step"], 0.0
    )


def _step(method: str, settings: dict[str, Any], seed: int, trained: Trained, command: str | None) -> artifact.Step:
    counts = {"steps": trained.steps, "kept_step": trained.kept_step}
    return artifact.Step(
        method=method, config={**settings, **counts}, seed=seed, duration_s=trained.seconds, command=command
    )


def _counts(config: dict[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in ("steps", "kept_step")}


def _is_main() -> bool:
    return int(os.environ.get("RANK", "0")) == 0
