"""A distillation from settings to a saved student.

The order matters: settings, the place for the result, models and corpus are checked before training, and nothing
half written is left behind.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from slimformer import artifact
from slimformer.methods.distill.config import DistillConfig
from slimformer.methods.distill.learning import learn
from slimformer.methods.distill.result import DistillResult
from slimformer.methods.distill.sentences import sentence_encoder
from slimformer.methods.distill.setup import set_up
from slimformer.methods.distill.trials import choose_layer
from slimformer.methods.place import Place, is_main
from slimformer.methods.record import counts_of, finished, step_of
from slimformer.train import StepOptions, TrainingOptions

if TYPE_CHECKING:
    from slimformer.corpus import Stream
    from slimformer.methods.manner import Manner
    from slimformer.methods.task_run import TaskResult

#: Settings that change nothing in the student, so that a run may be resumed with others.
BESIDE = frozenset(
    {"out", "report", "teacher_cache", *(name for name in DistillConfig.model_fields if name.startswith("finetune_"))}
)


def run_distillation(config: DistillConfig, manner: Manner) -> DistillResult:
    """Distil as the settings say, save the student, and fine-tune it if a task was given."""
    settings = config.model_dump(mode="json", exclude=set(BESIDE))
    place = Place.of(config.out)
    done = finished(place, "distill", settings) if manner.resume else None
    result = _distil(config, manner, settings, place) if done is None else _told_again(done, place)
    return result if config.task is None else replace(result, task=_finetune(config, manner))


def _distil(config: DistillConfig, manner: Manner, settings: dict[str, Any], place: Place) -> DistillResult:
    place.check(settings, manner)
    setup = set_up(config)
    settings = {**settings, "data_digest": setup.corpus.digest()}
    place.check(settings, manner)
    with place.working(settings) as folder:
        stream = setup.stream(memo=folder / "corpus.jsonl")
        options = _options(config, stream)
        layer, trials = choose_layer(setup, options, folder, manner.quiet)
        assert options.max_steps is not None
        examples = stream.first(options.max_steps * options.batch_size)
        student, trained = learn(setup, layer, options, examples, folder, quiet=manner.quiet)
        losses = _last_losses(trained.log)
        if place.out is not None and is_main():
            artifact.save(
                place.out,
                student,
                processor=setup.processor,
                step=step_of("distill", {**settings, "chosen_layer": layer}, config.seed, trained, manner.command),
                base=config.teacher if config.student is None else config.student,
                metrics={"corpus": losses},
                overwrite=manner.overwrite,
                write=None if config.pooled is None else sentence_encoder(config.pooled),
            )
    return DistillResult(
        student,
        setup.processor,
        place.out,
        layer,
        losses,
        trained.steps,
        trained.seconds,
        trained.log,
        trials,
    )


def _options(config: DistillConfig, stream: Stream) -> TrainingOptions:
    """How to train: as given, with passes over the corpus turned into steps."""
    given = {name: getattr(config, name) for name in StepOptions.model_fields}
    if config.passes is not None:
        given["max_steps"] = math.ceil(config.passes * stream.epoch_size() / config.batch_size)
    return TrainingOptions.make(given)


def _last_losses(log: list[dict[str, float]]) -> dict[str, float]:
    """What was logged last of the loss and its terms."""
    entries = [entry for entry in log if "loss" in entry]
    beside = ("epoch", "step", "grad_norm", "learning_rate")
    return {name: value for name, value in entries[-1].items() if name not in beside} if entries else {}


def _finetune(config: DistillConfig, manner: Manner) -> TaskResult:
    """Fine-tune the saved student; the result goes beside it, under the name of the task."""
    from slimformer.methods.finetune import finetune

    return finetune(
        model=config.out,
        task=config.task,
        data=config.data,
        out=f"{config.out}-{config.task}",
        epochs=config.finetune_epochs,
        max_steps=config.finetune_steps,
        batch_size=config.finetune_batch_size,
        lr=config.finetune_lr,
        max_length=config.finetune_length,
        seed=config.seed,
        threads=config.threads,
        **vars(manner),
    )


def _told_again(done: artifact.Loaded, place: Place) -> DistillResult:
    """The result of a run that had ended before."""
    step = done.manifest.steps[-1]
    return DistillResult(
        done.model,
        done.processor,
        place.out,
        int(cast("int", step.config["chosen_layer"])),
        dict(done.manifest.metrics["corpus"]),
        counts_of(step)["steps"],
        seconds=0.0,
    )
