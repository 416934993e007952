"""One student learning from one of the teacher's blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.anatomy import Anatomy
from slimformer.artifact import fingerprint
from slimformer.corpus import ImageCorpus
from slimformer.corpus.masked import MaskedExamples, masked_collator
from slimformer.methods.corpus import open_cache
from slimformer.methods.distill.setup import make_terms, wants_masks
from slimformer.methods.distill.student import pass_through
from slimformer.methods.terms import freeze_unused
from slimformer.objectives import RecordedStudent, Teacher, TermObjective
from slimformer.tasks.features import TensorCollator
from slimformer.tasks.masking import TokenMasking
from slimformer.train import train

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.corpus import Examples
    from slimformer.methods.distill.setup import Setup
    from slimformer.objectives import TeacherCache, Weighted
    from slimformer.tasks.features import Inputs
    from slimformer.train import Trained, TrainingOptions


def describe_training(setup: Setup) -> str:
    """What the settings mean: steps, examples, tokens, and about how many passes over the corpus these are."""
    config, length, corpus = setup.config, setup.length, setup.corpus
    named = {"max_steps", "batch_size", *([] if length is None else ["max_length"])} <= config.model_fields_set
    preset = "" if named or config.passes is not None else f" (preset `{config.preset}`)"
    if isinstance(corpus, ImageCorpus):
        what, pass_size, tokens = "images", float(len(corpus)), 0.0
    else:
        assert length is not None
        extent = corpus.estimate(setup.processor)
        whole = setup.judges_texts  # such texts are not put together to full length
        what = f"texts of {'up to ' * whole}{length} tokens"
        pass_size = max(extent.documents if whole else extent.tokens / length, 1.0)
        tokens = min(extent.tokens / max(extent.documents, 1.0), length) if whole else float(length)
    if config.passes is not None:
        examples, steps = config.passes * pass_size, f"{config.passes:g} times over the corpus in steps"
    else:
        assert config.max_steps is not None
        examples, steps = float(config.max_steps * config.batch_size), f"{config.max_steps:,} steps"
    seen = examples * tokens
    sizes = [
        *([] if not tokens else [f"{seen / 1e6:,.1f} million tokens" if seen >= 1e6 else f"{seen:,.0f} tokens"]),
        *([] if config.passes is not None else [f"{examples / pass_size:,.2g} times over the corpus"]),
    ]
    return f"{steps} of {config.batch_size} {what}{preset}: about {', or '.join(sizes)}"


def learn(
    setup: Setup,
    layer: int,
    options: TrainingOptions,
    examples: Examples,
    folder: Path,
    *,
    quiet: bool = False,
) -> tuple[PreTrainedModel, Trained]:
    """Train a new student on what a block knows.

    Args:
        setup: Teacher, student and what is learned.
        layer: The teacher's block.
        options: How to train.
        examples: What both models look at, in the order they do.
        folder: Where checkpoints go.
        quiet: Whether to say nothing while training.
    """
    config = setup.config
    student = setup.new_student()
    terms = make_terms(config, Anatomy.of(setup.teacher), Anatomy.of(student), setup.sentence, layer)
    teacher = Teacher(setup.teacher, _cache(setup, layer, terms))
    objective = TermObjective(terms, student, {"teacher": teacher})
    recorded = RecordedStudent(student, terms).train()
    features, collate = _features(setup, examples, terms)
    idle = freeze_unused(recorded, objective, collate([features[index] for index in range(min(2, len(features)))]))
    trained = train(recorded, options, features, collate, folder, objective=objective, quiet=quiet)
    student.requires_grad_(True)
    if config.student is None and config.start == "random":
        _settle(student, idle)
    return student.eval(), trained


def _features(
    setup: Setup, examples: Examples, terms: list[Weighted]
) -> tuple[Sequence[Inputs], Callable[[Any], dict[str, Any]]]:
    """What is trained on, with the variants that terms ask for, and what makes batches of it."""
    collate = examples.stream.collator()
    if not wants_masks(terms):
        return examples, collate
    assert isinstance(collate, TensorCollator)
    masking = TokenMasking.of(setup.processor, setup.config.seed)
    return MaskedExamples(examples, masking), masked_collator(collate)


def _settle(student: PreTrainedModel, idle: list[str]) -> None:
    """Fill what was not trained: a last block whose outputs no loss has seen adds nothing, instead of noise."""
    block = Anatomy.of(student).blocks[-1]
    weights = {id(parameter) for matrix in (block.output, block.down) for parameter in matrix.module.parameters()}
    unseen = {id(parameter) for name, parameter in student.named_parameters() if f"model.{name}" in idle}
    if weights <= unseen:
        pass_through(block)


def _cache(setup: Setup, layer: int, terms: list[Weighted]) -> TeacherCache | None:
    # Queries and keys were once kept before the norms some families have for them; such files are not read again.
    normed = " normed" if Anatomy.of(setup.teacher).family.query_norm is not None else ""
    return open_cache(setup.config, terms, lambda: f"{fingerprint(setup.teacher)} block {layer}{normed}")
