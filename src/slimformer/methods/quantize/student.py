"""The quantized student: which numbers are quantized, and what it learns from its float self (arXiv 2211.11014)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from slimformer.anatomy import Anatomy, Matrix
from slimformer.anatomy.tied import tied_modules
from slimformer.errors import ConfigError
from slimformer.methods.quantize.config import FLOAT
from slimformer.objectives import Models, Teacher, TermObjective, TermSpec, build_terms
from slimformer.objectives.terms.term import block_pairs
from slimformer.views import QuantizedView, Rounding, attach, round_activations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slimformer.formats.number import Shared
    from slimformer.methods.quantize.config import NumberOptions, QuantizeConfig


def quantize_numbers(model: nn.Module, options: NumberOptions) -> nn.Module:
    """Put views on a model's weights and round its activations, as the options say; nothing is lost yet."""
    anatomy = Anatomy.of(model)
    if options.weights != FLOAT:
        matrices = _matrices(anatomy, fused=options.granularity != "matrix")
        _check_groups(options.group_size, matrices)
        for matrix in matrices:
            attach(matrix, _view(options.weights, options.granularity, options))
    embedding = options.weights if options.embedding is None else options.embedding
    table = anatomy.word_embedding
    if embedding != FLOAT and table is not None:
        view = _view(embedding, "row", options)
        tied = tied_modules(anatomy)
        attach(table, view)
        for module in tied:
            attach(module, view)
    rounding = rounding_for(options)
    if rounding is not None:
        round_activations(model, rounding)
    return model


def check_quantizable(model: nn.Module, options: NumberOptions) -> None:
    """Refuse settings that do not fit a model, before any work."""
    _check_groups(options.group_size, _matrices(Anatomy.of(model), fused=True))


def rounding_for(options: NumberOptions) -> Rounding | None:
    """How activations are rounded; None for not at all."""
    if options.activations == "none":
        return None
    clip = options.activation_clip or None
    return Rounding(bits=8, per=options.activation_scale, clip=clip, symmetric=not options.asymmetric)


def _matrices(anatomy: Anatomy, fused: bool) -> list[Matrix]:
    """The matrices of blocks and pooler; those that lie in one module as one, where they share no scale anyway."""
    matrices = [matrix for block in anatomy.blocks for matrix in block.matrices.values()]
    if fused:
        paths = {matrix.path: matrix for matrix in matrices}
        matrices = [Matrix(matrix.root, matrix.path) for matrix in paths.values()]
    return matrices if anatomy.pooler is None else [*matrices, anatomy.pooler]


def _check_groups(size: int | None, matrices: Sequence[Matrix]) -> None:
    """Refuse groups beyond the longest row: all rows would be filled up to their size."""
    longest = max(matrix.shape[1] for matrix in matrices)
    if size is not None and size > longest:
        raise ConfigError(
            f"`group_size` is {size}, and the longest row has {longest} weights; give {longest} or less, or let each "
            "`row` share a scale"
        )


def _view(weights: str, granularity: Shared, options: NumberOptions) -> QuantizedView:
    size = options.group_size if granularity == "group" else None
    return QuantizedView(weights, granularity, size, clip=options.weight_clip or None)


#: Module, attribute, and the value it had.
Dropout = list[tuple[nn.Module, str, float]]
#: Terms that `--balance auto` weighs.
BALANCED = ("attention-maps", "attention-output", "attention-scores", "mha")


def kd_objective(
    teacher: nn.Module,
    student: nn.Module,
    config: QuantizeConfig,
    items: Callable[[Mapping[str, Any]], int] | None = None,
) -> TermObjective:
    """Soft labels, hidden states, and what attention does, compared layer by layer.

    Args:
        teacher: The float model; it is put into eval mode and gets no gradients.
        student: The model that is trained, without wrappers.
        config: Which terms, and how they are weighted.
        items: What the task's own loss is a mean over; None for labelled tokens or examples.

    Example:
        >>> teacher = copy.deepcopy(student)
        >>> objective = kd_objective(teacher, student, QuantizeConfig(kd="map+output", beta=0.5))
        >>> objective(student, batch).total.backward()
    """
    models = Models(Anatomy.of(student), Anatomy.of(teacher))
    try:
        blocks = block_pairs(config.distil_layers.split(","), models)
    except ConfigError as error:
        raise ConfigError(f"`distil_layers` is `{config.distil_layers}`: {error}") from error
    models = Models(models.student, models.teacher, blocks, items)
    terms = build_terms(config.learned(blocks), models, _defaults(config), labelled=True)
    for each in terms:
        if each.term.maps():
            raise ConfigError(f"term `{each.label}` trains a head of its own, which a quantized model has no room for")
    if config.stages == 2 and not any(each.term.stage == "predictions" for each in terms):
        raise ConfigError("`stages` is 2, and `terms` has nothing for the second one; add `logits:1`")
    balanced = [each.label for each in terms if each.label.partition("[")[0] in BALANCED]
    if config.balance == "auto" and len(balanced) < 2:
        raise ConfigError(
            f"`balance` is `auto`, and `terms` has {len(balanced)} of {', '.join(BALANCED)}; name two of them"
        )
    return TermObjective(
        terms,
        student,
        {"teacher": Teacher(teacher, read_scores=True)},
        read_scores=True,
        balanced=balanced if config.balance == "auto" else (),
        first_stage=config.steps_of_first_stage,
    )


def unlabelled_objective(teacher: nn.Module, student: nn.Module) -> TermObjective:
    """What every block gives compared with what it gives in the float model, and the predictions of the head.

    Args:
        teacher: The float model; it is put into eval mode and gets no gradients.
        student: The model that is trained, without wrappers.
    """
    models = Models(Anatomy.of(student), Anatomy.of(teacher))
    layers = ("embeddings", *(str(block.index) for block in models.student.blocks))
    learned = [TermSpec("hidden", 1.0, layers)]
    if Anatomy.of(student).head:
        learned.append(TermSpec("logits"))
    return TermObjective(build_terms(learned, models), student, {"teacher": Teacher(teacher)})


def _defaults(config: QuantizeConfig) -> dict[str, dict[str, Any]]:
    """What settings of the method mean to the terms."""
    padding = {"padding": config.reference}
    return {
        "logits": {"mean_over_classes": config.mean_over_classes},
        "hidden": padding,
        "attention-output": padding,
        "mha": padding,
        "attention-maps": {"temperature": config.temperature},
        "attention-scores": {"reference": config.reference},
    }


def take_dropout(model: nn.Module) -> Dropout:
    """Set every dropout of a model to 0, and return what there was.

    Its teacher has none, and noise in one of two models is only noise in their difference.
    """
    taken: Dropout = []
    for module in model.modules():
        # Attention that goes through Transformers' registry is told its dropout by one of the last two.
        for name in ("p",) if isinstance(module, nn.Dropout) else ("attention_dropout", "dropout"):
            value = getattr(module, name, None)
            if isinstance(value, float) and value > 0:
                taken.append((module, name, value))
                setattr(module, name, 0.0)
    return taken


def give_back(dropout: Dropout) -> None:
    """Set every dropout to what it was."""
    for module, name, value in dropout:
        setattr(module, name, value)
