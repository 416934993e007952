"""A distillation from settings to a saved student.

The order matters: settings, the place for the result, models and corpus are checked before training, and nothing
half written is left behind.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from slimformer import artifact
from slimformer.methods.base import check_trainable, read_base
from slimformer.methods.distill.config import DistillConfig
from slimformer.methods.distill.learning import learn
from slimformer.methods.distill.result import DistillResult, losses_in
from slimformer.methods.distill.sentences import sentence_encoder
from slimformer.methods.distill.setup import set_up
from slimformer.methods.distill.trials import choose_layer
from slimformer.methods.place import Place, is_main
from slimformer.methods.record import counts_of, finished, step_of
from slimformer.tasks import get_task
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
    if config.task is not None:
        _check_task(config, manner)
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
        logged = [entry for entry in trained.log if "loss" in entry]
        losses = losses_in(logged[-1]) if logged else {}
        if place.out is not None and is_main():
            artifact.save(
                place.out,
                student,
                processor=setup.processor,
                step=step_of("distill", {**settings, "chosen_layer": layer}, config.seed, trained, manner.command),
                base=config.teacher if config.student is None else config.student,
                metrics={"corpus": losses},
                overwrite=manner.overwrite,
                sidecar=None if config.pooled is None else sentence_encoder(student, setup.sentence),
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


def _check_task(config: DistillConfig, manner: Manner) -> None:
    """Refuse a task that could not be trained on or kept before days are spent on what comes before it."""
    assert config.task is not None
    assert config.teacher is not None
    Place.of(_tuned(config)).check({}, manner)
    task = get_task(config.task)
    check_trainable(config.teacher, read_base(config.teacher), task)
    task.load(config.data, ("train", "dev"))


def _tuned(config: DistillConfig) -> str:
    """Where the fine-tuned student goes: beside the student, under the name of the task."""
    return f"{config.out}-{config.task}"


def _finetune(config: DistillConfig, manner: Manner) -> TaskResult:
    """Fine-tune the saved student."""
    from slimformer.methods.finetune import finetune

    return finetune(
        model=config.out,
        task=config.task,
        data=config.data,
        out=_tuned(config),
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
