"""Widths of single blocks, for models whose blocks are not what one number in a config of Transformers says.

A config has one number of neurons and one of heads for all blocks, and often no width of a head. Where that is not
enough, the widths stand in `quantization_config`: the one place of a config at which Transformers lets a package change
a model after it is built and before its weights are loaded.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from slimformer.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from transformers import PreTrainedModel

#: What `quant_method` says in a config that holds the widths of its blocks, and in one whose weights are packed, which
#: may hold them too.
METHOD, PACKED = "slimformer-blocks", "slimformer"
#: Version of the description written, and the newest one read.
VERSION = 1


class BlockWidth(NamedTuple):
    """What one block has: feed-forward neurons and key-value heads, each with the query heads it serves."""

    neurons: int
    heads: int


def widths_of(model: nn.Module) -> tuple[BlockWidth, ...]:
    """The widths of a model's blocks."""
    from slimformer.anatomy import Anatomy

    return tuple(BlockWidth(block.ffn_width, block.key_value_heads) for block in Anatomy.of(model).blocks)


def described_widths(config: Any) -> tuple[BlockWidth, ...] | None:
    """The widths that a config gives block by block; None where it gives none."""
    described: Any = getattr(config, "quantization_config", None)
    if hasattr(described, "to_dict"):
        described = described.to_dict()
    if not isinstance(described, dict) or described.get("quant_method") not in (METHOD, PACKED):
        return None
    if described["quant_method"] == PACKED:
        return None if described.get("blocks") is None else _checked(described["blocks"])
    if described.get("version") != VERSION:
        raise CheckpointError(
            f"config.json describes blocks by version {described.get('version')!r}, and this slimformer knows version "
            f"{VERSION}; install the version that wrote it"
        )
    return _checked(described.get("blocks"))


def describe_widths(model: nn.Module) -> list[dict[str, int]]:
    """The widths of a model's blocks as a config holds them."""
    return [width._asdict() for width in widths_of(model)]


def needs_widths(model: Any) -> bool:
    """Whether a model is another than the one its config builds."""
    import torch

    config = copy.deepcopy(model.config)
    with torch.device("meta"):
        built = type(model)(config)
    shapes = [{name: tensor.shape for name, tensor in each.state_dict().items()} for each in (model, built)]
    return shapes[0] != shapes[1] or widths_of(model) != widths_of(built)


def narrow(model: nn.Module, widths: Sequence[BlockWidth]) -> None:
    """Keep the first neurons and heads of every block, as many as told; weights may be on the meta device."""
    from slimformer.anatomy import Anatomy

    blocks = Anatomy.of(model).blocks
    if len(widths) != len(blocks):
        raise CheckpointError(
            f"config.json gives the widths of {len(widths)} blocks and builds {len(blocks)}; copy the checkpoint again"
        )
    for block, width in zip(blocks, widths, strict=True):
        full = BlockWidth(block.ffn_width, block.key_value_heads)
        if width.neurons > full.neurons or width.heads > full.heads:
            raise CheckpointError(
                f"config.json gives block {block.index} {width.neurons:,} neurons and {width.heads} heads, and builds "
                f"{full.neurons:,} and {full.heads}; copy the checkpoint again"
            )
        if width.heads < full.heads:
            block.keep_heads(range(width.heads))
        if width.neurons < full.neurons:
            block.keep_neurons(range(width.neurons))


def as_described(model: PreTrainedModel) -> PreTrainedModel:
    """A model that was just built, narrowed where its config gives widths."""
    widths = described_widths(model.config)
    if widths is not None:
        narrow(model, widths)
    return model


def _checked(blocks: Any) -> tuple[BlockWidth, ...]:
    if not isinstance(blocks, list) or not all(_is_width(block) for block in blocks):
        raise CheckpointError("config.json gives no whole numbers of neurons and heads for its blocks; copy it again")
    return tuple(BlockWidth(**block) for block in blocks)


def _is_width(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and block.keys() == set(BlockWidth._fields)
        and all(type(value) is int and value > 0 for value in block.values())
    )
