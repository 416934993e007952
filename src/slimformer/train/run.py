"""One training run, from a model and features to trained weights."""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slimformer.errors import TrainingError
from slimformer.train import checkpoints
from slimformer.train.folder import SUFFIX, writing
from slimformer.train.objective import SteppedObjective
from slimformer.train.sharding.launching import check_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import nn
    from torch.optim import Optimizer

    from slimformer.train.objective import Objective
    from slimformer.train.options import TrainingOptions

    #: A class of optimizers and what it takes beside weights and rates.
    OptimizerChoice = tuple[type[Optimizer], Mapping[str, Any]]


@dataclass(frozen=True)
class Trained:
    """What a run did: its log entries, the steps taken, and which step's weights were kept."""

    log: list[dict[str, float]]
    steps: int
    kept_step: int
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


def train(
    model: nn.Module,
    options: TrainingOptions,
    features: Sequence[Mapping[str, Any]],
    collate: Callable[[Any], Any],
    folder: Path,
    *,
    objective: Objective | None = None,
    items: Callable[[Mapping[str, Any]], int] | None = None,
    evaluation: Callable[[nn.Module], dict[str, float]] | None = None,
    primary: str | None = None,
    greater_is_better: bool = True,
    lengths: list[int] | None = None,
    before_step: Callable[[int], None] | None = None,
    after_step: Callable[[int], None] | None = None,
    optimizer: OptimizerChoice | None = None,
    quiet: bool = False,
) -> Trained:
    """Train a model in place, going on from the newest checkpoint in `folder` if there is one.

    The model must come in the same state at every start; whatever was trained lies in the checkpoint.

    Args:
        model: The model, views attached.
        options: How to train.
        features: Training examples.
        collate: Makes a batch of some of them.
        folder: Where checkpoints go; the caller removes it when the result is safe.
        objective: What to minimise; None for the loss the model itself returns.
        items: How many items of a batch the task's own loss is a mean over; None for labelled tokens or examples.
        evaluation: Returns metrics of the model on dev; called during training.
        primary: The metric that decides which weights are kept; None keeps the last ones.
        greater_is_better: Whether more of it is better.
        lengths: Lengths of the examples, for `group_by_length`.
        before_step: Called with the number of each optimizer step, from 0, before it begins; what it sets is in force
            until the next one, for all parts of a batch and their gradients.
        after_step: Called with the same number once the step is taken, before its weights are measured or written.
        optimizer: A class of optimizers and what it takes beside weights and the rates of `options`; None for AdamW.
        quiet: Whether to say nothing while training.
    """
    from transformers import set_seed

    from slimformer.train.loop.trainer import SlimTrainer
    from slimformer.train.progress import ProgressBar
    from slimformer.train.rehearsal import RehearsedError, Stopwatch, current_rehearsal
    from slimformer.train.sharding.sharded import shard
    from slimformer.views import enable_checkpointing
    from slimformer.views.slice import skip_of

    epoch = math.ceil(len(features) / options.batch_size)
    rehearsal = current_rehearsal()
    if rehearsal is not None:
        evaluation, quiet = None, True
    arguments = _arguments(options, folder, epoch, evaluates=evaluation is not None, quiet=quiet)
    # A step that skips a block has no gradients of it, for which processes would wait.
    arguments.ddp_find_unused_parameters = any(skip_of(module) is not None for module in model.modules())
    beginnings = [] if before_step is None else [before_step]
    if isinstance(objective, SteppedObjective):
        beginnings.append(objective.begin)
    callbacks = _callbacks(options, epoch if evaluation is not None else None, beginnings, after_step, quiet=quiet)
    if rehearsal is not None:
        taken = rehearsal.begin(model, folder, arguments.max_steps, options.batch_size)
        callbacks.append(Stopwatch(taken))
        collate = taken.counted(collate)
    with surroundings(options.threads), _own_forward(model):
        set_seed(options.seed)
        sharded = shard(model, arguments.device) if options.shard and arguments.world_size > 1 else None
        trainer = SlimTrainer(
            model=model,
            args=arguments,
            train_dataset=features,
            eval_dataset=features,  # never read: the loop only wants to know that there is something to evaluate on
            data_collator=collate,
            objective=objective,
            items=items,
            evaluation=evaluation,
            primary=primary if options.best else None,
            greater_is_better=greater_is_better,
            lengths=lengths if options.group_by_length else None,
            callbacks=callbacks,
            sharded=sharded,
            optimizer_cls_and_kwargs=None
            if optimizer is None
            else (optimizer[0], {**_rates(arguments), **optimizer[1]}),
        )
        _remove_printers(trainer)
        if options.gradient_checkpointing:
            enable_checkpointing(model)  # the loop's own switch knows no widths
        start = time.monotonic()
        checkpoint = checkpoints.latest(folder, _warn)
        checkpoints.check_reached(checkpoint, arguments.max_steps)
        try:
            with writing(folder):
                trainer.run(checkpoint)
        finally:
            for callback in callbacks:
                if isinstance(callback, ProgressBar):
                    callback.close()
        if rehearsal is not None and folder == rehearsal.folder:
            raise RehearsedError
        noted = trainer.load_best()
        if sharded is not None:
            sharded.undo()
    steps = trainer.state.global_step
    return Trained(
        log=list(trainer.state.log_history),
        steps=steps,
        kept_step=int(noted.get("step", steps)),
        seconds=time.monotonic() - start,
    )


def _callbacks(
    options: TrainingOptions,
    epoch: int | None,
    before_step: Sequence[Callable[[int], None]],
    after_step: Callable[[int], None] | None,
    *,
    quiet: bool,
) -> list[Any]:
    """What the loop calls; `epoch` is None where nothing is measured."""
    from slimformer.train import progress
    from slimformer.train.tracking import trackers

    callbacks: list[Any] = [progress.Intervals(), progress.LogAtTheEnd()]
    callbacks += map(progress.BeforeStep, before_step)
    if after_step is not None:
        callbacks.append(progress.AfterStep(after_step))
    if epoch is not None and options.eval_every is None:
        callbacks.append(progress.EvaluateEpochs(epoch))
    if not quiet:
        callbacks.append(progress.ProgressBar() if sys.stderr.isatty() else progress.ProgressLines())
    return [*callbacks, *trackers(options.track or (), options.tensorboard)]


def count_steps(options: TrainingOptions, epoch: int) -> int:
    """Optimizer steps of a run whose epochs have so many."""
    return options.max_steps or max(1, math.ceil(options.epochs * epoch))


@contextmanager
def surroundings(threads: int | None) -> Iterator[None]:
    """Threads as asked for and Transformers silent, both only while training."""
    import torch
    from transformers.utils import logging

    threads_before, verbosity = torch.get_num_threads(), logging.get_verbosity()
    torch.set_num_threads(threads or threads_before)
    logging.set_verbosity_error()
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        logging.set_verbosity(verbosity)


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """Take off what mixed precision puts around a model's forward: once trained, it computes as it will be stored."""
    before = model.__dict__.get("forward")
    try:
        yield
    finally:
        for name in ("forward", "_original_forward"):
            model.__dict__.pop(name, None)
        if before is not None:
            model.__dict__["forward"] = before


def _warn(message: str) -> None:
    sys.stderr.write(f"note: {message}\n")


def _arguments(options: TrainingOptions, folder: Path, epoch: int, *, evaluates: bool, quiet: bool) -> Any:
    import torch
    from transformers import TrainingArguments

    check_launch(options.shard)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    parts = world * options.accumulation
    if options.batch_size % parts:
        raise TrainingError(
            f"`batch_size` {options.batch_size} cannot be split over {world} processes x {options.accumulation} "
            f"accumulation steps; give a multiple of {parts}"
        )
    total = count_steps(options, epoch)
    evaluating: dict[str, Any] = {"eval_strategy": "no"}  # without a number of steps, a callback asks for it
    if evaluates and options.eval_every is not None:
        evaluating = {"eval_strategy": "steps", "eval_steps": options.eval_every}
    arguments = TrainingArguments(
        output_dir=str(folder),
        run_name=folder.name.removesuffix(SUFFIX),
        max_steps=total,
        per_device_train_batch_size=options.batch_size // parts,
        gradient_accumulation_steps=options.accumulation,
        learning_rate=options.lr,
        lr_scheduler_type="constant_with_warmup" if options.schedule == "constant" else options.schedule,
        warmup_steps=int(options.warmup * total),
        weight_decay=options.weight_decay,
        adam_beta1=options.beta1,
        adam_beta2=options.beta2,
        max_grad_norm=options.clip,
        seed=options.seed,
        bf16=options.bf16,
        use_cpu=not torch.accelerator.is_available(),
        save_strategy="steps",
        save_steps=options.save_every,
        logging_steps=options.log_every,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
        dataloader_pin_memory=False,
        **evaluating,
    )
    _use_one_gpu(arguments, quiet)
    return arguments


def _rates(arguments: Any) -> dict[str, Any]:
    """What every optimizer is told."""
    betas = (arguments.adam_beta1, arguments.adam_beta2)
    return {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}


def _use_one_gpu(arguments: Any, quiet: bool) -> None:
    """Keep the loop from `nn.DataParallel`: a batch for each GPU would multiply the batch size."""
    count = arguments.n_gpu
    if count > 1:
        arguments._n_gpu = 1
        if not quiet:
            _warn(
                f"of {count} GPUs one is used; `accelerate launch --multi_gpu --num_processes {count} -m slimformer …` "
                "uses them all"
            )


def _remove_printers(trainer: Any) -> None:
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)
