"""Which matrices of a model are masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from slimformer.anatomy import Anatomy, Matrix
from slimformer.anatomy.block import refuse_pinned_heads
from slimformer.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slimformer.artifact.storage.mask_file import Unit
    from slimformer.methods.mask.config import MaskConfig


@dataclass(frozen=True)
class Place:
    """A matrix that gets scores.

    Args:
        matrix: The matrix.
        number: What its initial scores depend on besides the seed, the same whatever else is masked.
        block: Its block; None outside the blocks.
        unit: What its columns are dropped by together; None for each weight by itself.
        units: How many of them there are.
    """

    matrix: Matrix
    number: int
    block: int | None = None
    unit: Unit | None = None
    units: int = 0

    @property
    def group(self) -> tuple[int, int]:
        """Shape of one score per unit."""
        return 1, self.units


def choose(model: PreTrainedModel, config: MaskConfig) -> list[Place]:
    """The matrices to mask, in the order of the model."""
    anatomy = Anatomy.of(model)
    if config.prunes("heads"):
        refuse_pinned_heads(anatomy.family)
    places = []
    for number in checked_blocks(config, len(anatomy.blocks)):
        block = anatomy.blocks[number]
        for index, (role, matrix) in enumerate(block.matrices.items()):
            where = number * 16 + index
            if role == "down" and config.prunes("neurons"):
                places.append(Place(matrix, where, number, "neurons", block.ffn_width))
            elif role == "output" and config.prunes("heads"):
                places.append(Place(matrix, where, number, "heads", block.key_value_heads))
            elif role in config.roles:
                places.append(Place(matrix, where, number))
    beyond = len(anatomy.blocks) * 16
    if config.masks("pooler") and anatomy.pooler is not None:
        places.append(Place(anatomy.pooler, beyond))
    if config.masks("classifier") and config.classifier == "masked":
        places += [Place(matrix, beyond + 1 + index) for index, matrix in enumerate(head_matrices(model))]
    if not places:
        raise ConfigError(f"`--matrices` is `{config.matrices}`, none of which the model has; give others")
    return places


def checked_blocks(config: MaskConfig, count: int) -> list[int]:
    """The numbers of the blocks to mask; one the model does not have is an error."""
    numbers = config.block_numbers(count)
    if not numbers or numbers[0] < 0 or numbers[-1] >= count:
        asked = next(
            f"`--{name.replace('_', '-')}` is `{value}`"
            for name in ("top_down", "bottom_up", "blocks")
            if (value := getattr(config, name)) is not None
        )
        raise ConfigError(f"{asked}, but the model has {count} blocks, 0 to {count - 1}; give some of these")
    return numbers


def new_head(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The modules of a task's head; none where the head is that of pretraining, which belongs to the base."""
    if model.get_output_embeddings() is not None:
        return {}
    return Anatomy.of(model).head


def head_matrices(model: PreTrainedModel) -> list[Matrix]:
    """The matrices of a task's head."""
    return [
        Matrix(model, f"{name}.{path}" if path else name)
        for name, head in new_head(model).items()
        for path, module in head.named_modules()
        if isinstance(module, nn.Linear)
    ]
