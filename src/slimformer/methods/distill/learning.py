"""One student learning from one of the teacher's blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.anatomy import Anatomy
from slimformer.artifact import fingerprint
from slimformer.methods.distill.cache import TeacherCache
from slimformer.methods.distill.objective import Distillation, freeze_unused
from slimformer.methods.distill.student import pass_through
from slimformer.methods.distill.watching import Watched
from slimformer.train import train

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from transformers import PreTrainedModel

    from slimformer.corpus import Examples
    from slimformer.methods.distill.config import DistillConfig
    from slimformer.methods.distill.setup import Setup
    from slimformer.train import Trained, TrainingOptions


def learn(
    setup: Setup,
    layer: int,
    options: TrainingOptions,
    examples: Examples,
    folder: Path,
    *,
    quiet: bool = False,
) -> tuple[PreTrainedModel, Trained]:
    """Train a new student on the knowledge of a block.

    Args:
        setup: Teacher, student and what is learned.
        layer: The teacher's block.
        options: How to train.
        examples: What both models look at, in the order they do.
        folder: Where checkpoints go.
        quiet: Whether to say nothing while training.
    """
    config, collate = setup.config, examples.stream.collator()
    student = setup.new_student()
    objective = Distillation(
        Watched(setup.teacher, layer, setup.names, setup.sentence.pooling),
        setup.knowledge,
        _cache(config, setup, layer),
    )
    watched = Watched(student, -1, setup.names, setup.sentence.pooling, _maps(setup, student)).train()
    idle = freeze_unused(watched, objective, collate([examples[index] for index in range(min(2, len(examples)))]))
    trained = train(watched, options, examples, collate, folder, objective=objective, quiet=quiet)
    student.requires_grad_(True)
    if config.student is None and config.start == "random":
        _settle(student, idle)
    return student.eval(), trained


def _maps(setup: Setup, student: PreTrainedModel) -> dict[str, nn.Module]:
    teacher, ours = Anatomy.of(setup.teacher), Anatomy.of(student)
    return {name: module for _, each in setup.knowledge for name, module in each.maps(teacher, ours).items()}


def _settle(student: PreTrainedModel, idle: list[str]) -> None:
    """Fill what was not trained: a last block whose outputs no loss has seen adds nothing, instead of noise."""
    block = Anatomy.of(student).blocks[-1]
    weights = {id(parameter) for matrix in (block.output, block.down) for parameter in matrix.module.parameters()}
    unseen = {id(parameter) for name, parameter in student.named_parameters() if f"model.{name}" in idle}
    if weights <= unseen:
        pass_through(block)


def _cache(config: DistillConfig, setup: Setup, layer: int) -> TeacherCache | None:
    if config.teacher_cache is None:
        return None
    return TeacherCache(config.teacher_cache, setup.names, f"{fingerprint(setup.teacher)} block {layer}")
