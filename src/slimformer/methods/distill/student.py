"""The student: a plain model of the teacher's family in any shape, and what it starts from.

What is built is a checkpoint like any other; nothing in it knows of slimformer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from slimformer.anatomy import Anatomy, family_of
from slimformer.errors import ConfigError
from slimformer.models import positions
from slimformer.models.building import build, resize

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.anatomy import Block
    from slimformer.methods.distill.config import Start, StudentShape


#: The table of positions in the families whose students may be of another.
POSITIONS = "embeddings.position_embeddings.weight"


def build_student(teacher: PreTrainedModel, shape: StudentShape, seed: int = 0) -> PreTrainedModel:
    """Build a student of the teacher's family.

    Args:
        teacher: A base model; one with a head gives the student such a head too.
        shape: How large the student is and what it starts from.
        seed: Seed of the random weights.
    """
    student = build(student_builder(teacher, shape), seed, "student")
    if shape.start != "random":
        copy_weights(teacher, student, shape.start)
    return student


def student_builder(teacher: PreTrainedModel, shape: StudentShape) -> Callable[[], PreTrainedModel]:
    """What makes a student with random weights; of the teacher, its class and its config are looked at alone."""
    config = student_config(teacher.config, shape)
    model_class: Any = type(teacher)
    if config.model_type != teacher.config.model_type:
        model_class = _counterpart(teacher, config)
    return lambda: cast("PreTrainedModel", model_class._from_config(config))


def _counterpart(teacher: PreTrainedModel, config: PretrainedConfig) -> Any:
    """The class of another family that has the same head as the teacher."""
    import transformers

    base: Any = transformers.MODEL_MAPPING[type(config)]
    if Anatomy.of(teacher).base is teacher:
        return base
    own = type(teacher).__name__
    name = base.__name__.removesuffix("Model") + own[own.find("For") :]
    if "For" not in own or not hasattr(transformers, name):
        raise ConfigError(
            f"Transformers has no `{own}` with factorised embeddings; leave `embedding` out, or learn `relations` of a "
            "model without that head"
        )
    return getattr(transformers, name)


def student_config(teacher: PretrainedConfig, shape: StudentShape) -> PretrainedConfig:
    """The student's config: the teacher's, with other sizes."""
    resized = resize(teacher, shape)
    return resized if shape.embedding is None else _factorised(resized, shape.embedding)


def copy_weights(teacher: nn.Module, student: nn.Module, start: Start) -> None:
    """Fill a student with weights of its teacher: the first rows, columns and heads of the blocks chosen."""
    old, new = Anatomy.of(teacher), Anatomy.of(student)
    chosen = source_blocks(len(old.blocks), len(new.blocks), start)
    for block, index in zip(new.blocks, chosen, strict=True):
        _copy_block(old.blocks[index], block)
    paths = {id(parameter) for block in new.blocks for parameter in block.module.parameters()}
    known = _named_weights(old)
    if old.family.positions_after_padding and not new.family.positions_after_padding:
        known[POSITIONS] = known[POSITIONS][(old.config.pad_token_id or 0) + 1 :]
    with torch.no_grad():
        for name, parameter in _named_weights(new).items():
            if id(parameter) not in paths and name in known and known[name].dim() == parameter.dim():
                _copy_corner(known[name], parameter)


def _named_weights(anatomy: Anatomy) -> dict[str, Tensor]:
    """Weights by names that families share: those of the base without its prefix."""
    base: dict[str, Tensor] = dict(anatomy.base.named_parameters())
    inside = {id(parameter) for parameter in base.values()}
    head = {name: each for name, each in anatomy.model.named_parameters() if id(each) not in inside}
    return {**base, **{f"head.{name}": each for name, each in head.items()}}


@torch.no_grad()
def pass_through(block: Block) -> None:
    """Let a block add nothing to what comes in: its two matrices that write to the hidden states become 0."""
    for matrix in (block.output, block.down):
        bias = matrix.bias
        matrix.write(torch.zeros(matrix.shape), None if bias is None else torch.zeros_like(bias))


def source_blocks(teacher: int, student: int, start: Start) -> list[int]:
    """Which of the teacher's blocks each of the student's comes from."""
    if student > teacher:
        raise ConfigError(
            f"the student has {student} layers and the teacher {teacher}; "
            f"`--start {start}` needs at most as many, or start at random"
        )
    if start == "truncate":
        return list(range(student))
    # Evenly spaced, the last of the student from the last of the teacher.
    return [round((index + 1) * teacher / student) - 1 for index in range(student)]


@torch.no_grad()
def _copy_block(source: Block, target: Block) -> None:
    group = target.heads // target.key_value_heads
    of_queries = _head_rows(source, source.heads, target, target.heads)
    of_keys = _head_rows(source, source.key_value_heads, target, target.key_value_heads)
    if group != source.heads // source.key_value_heads:
        raise ConfigError(
            f"the student has {group} query heads for each key head and the teacher "
            f"{source.heads // source.key_value_heads}; keep the proportion, or start at random"
        )
    rows = {"query": of_queries, "key": of_keys, "value": of_keys}
    for role, matrix in target.matrices.items():
        origin = source.matrices[role]
        _check_fits(origin.shape, matrix.shape, role)
        weight = origin.weight
        if role in rows:
            weight = weight[rows[role]]
        if role == "output":
            weight = weight[:, of_queries]
        bias = origin.bias
        if bias is not None and role in rows:
            bias = bias[rows[role]]
        height, width = matrix.shape
        matrix.write(weight[:height, :width], None if bias is None else bias[:height])
    written = {id(parameter) for matrix in target.matrices.values() for parameter in matrix.module.parameters()}
    known = _named_norms(source)
    for name, parameter in _named_norms(target).items():
        if id(parameter) not in written and name in known:  # the first block of ModernBERT lacks one
            _copy_corner(known[name], parameter)


def _named_norms(block: Block) -> dict[str, Tensor]:
    """Weights of a block, its norms by names that families share."""
    names = {block.family.attention_norm: "attention_norm", block.family.ffn_norm: "ffn_norm"}
    weights: dict[str, Tensor] = {}
    for name, parameter in block.module.named_parameters():
        module, _, kind = name.rpartition(".")
        weights[f"{names.get(module, module)}.{kind}"] = parameter
    return weights


def _head_rows(source: Block, old_heads: int, target: Block, new_heads: int) -> Tensor:
    """Rows of the teacher's projection that become the student's: the first dimensions of its first heads.

    A student with more or wider heads takes the first rows as they come.
    """
    old_width, new_width = source.head_width, target.head_width
    if new_heads > old_heads or new_width > old_width:
        return torch.arange(new_heads * new_width)
    return (torch.arange(new_heads)[:, None] * old_width + torch.arange(new_width)).flatten()


def _check_fits(teacher: tuple[int, int], student: tuple[int, int], role: str) -> None:
    if any(have < want for have, want in zip(teacher, student, strict=True)):
        raise ConfigError(
            f"the student's {role} is {list(student)} and the teacher's {list(teacher)}; "
            "a student larger than its teacher can only start at random"
        )


def _copy_corner(source: Tensor, target: Tensor) -> None:
    """Copy as much of a tensor as the other has room for; what is beyond it keeps its random start."""
    corner = tuple(slice(0, min(old, new)) for old, new in zip(source.shape, target.shape, strict=True))
    target[corner] = source[corner]


#: What a setting is called in other families.
RENAMED = {
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}


def _factorised(student: PretrainedConfig, embedding: int) -> PretrainedConfig:
    """A config of the family that has the same blocks under narrower embeddings."""
    from transformers import AutoConfig

    family = family_of(student.model_type)
    if family.factorised is None:
        raise ConfigError(f"`{family.name}` has no factorised embeddings in Transformers; leave `embedding` out")
    if embedding >= student.hidden_size:
        raise ConfigError(f"`embedding` is {embedding}, not less than `hidden` {student.hidden_size}; leave it out")
    if family.factorised == family.name:
        student.embedding_size = embedding
        return student
    shared = {}
    for name in AutoConfig.for_model(family.factorised).to_dict():
        own = next((each for each in (name, RENAMED.get(name, name)) if hasattr(student, each)), None)
        if own is not None and name != "model_type":
            shared[name] = getattr(student, own)
    sizes = {"intermediate_size": getattr(student, family.ffn_size), "max_position_embeddings": positions(student)}
    return AutoConfig.for_model(family.factorised, **{**shared, **sizes, "embedding_size": embedding})
