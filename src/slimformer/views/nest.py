"""Nested sizes: slices on all matrices of a block that must agree, under one width; blocks and outputs as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.anatomy import Anatomy
from slimformer.anatomy.block import refuse_pinned_block, refuse_pinned_heads
from slimformer.anatomy.family import Fused
from slimformer.anatomy.matrix import Matrix
from slimformer.errors import ViewError
from slimformer.views.slice import Skip, SliceView, cut, follow, skip
from slimformer.views.stack import OUTPUT_DIMENSIONS, attach
from slimformer.views.width import Width

if TYPE_CHECKING:
    from torch import nn

    from slimformer.anatomy.block import Block
    from slimformer.views.width import Extent


def slice_neurons(block: Block, extent: Extent | None = None) -> Width:
    """Make the feed-forward layer of a block nested; the returned width, one of the extent's, counts neurons."""
    width = Width(block.ffn_width, extent=extent)
    rows = [matrix for matrix in (block.up, block.gate) if matrix is not None]
    for module, chunks in _whole(rows):
        attach(module, SliceView(width, "rows", chunks=chunks))
    attach(Matrix(block.base, block.down.path), SliceView(width, "columns"))
    return width


def slice_heads(block: Block, extent: Extent | None = None) -> Width:
    """Make the attention of a block nested; the returned width, one of the extent's, counts key-value heads.

    Each key-value head keeps the query heads it serves.
    """
    refuse_pinned_heads(block.family)
    group = block.heads // block.key_value_heads
    width = Width(block.key_value_heads, extent=extent)
    if isinstance(block.family.query, Fused):
        # Parts that alternate head by head are cut as one stretch, parts in a row each by itself.
        chunks, parts = (1, block.family.query.count) if block.family.query.per_head else (3, 1)
        whole = Matrix(block.base, block.query.path)
        attach(whole, SliceView(width, "rows", unit=block.head_width * parts, chunks=chunks))
    else:
        attach(block.query, SliceView(width, "rows", unit=block.head_width * group))
        attach(block.key, SliceView(width, "rows", unit=block.head_width))
        attach(block.value, SliceView(width, "rows", unit=block.head_width))
    attach(block.output, SliceView(width, "columns", unit=block.head_width * group))
    for name in block.family.head_counts:
        follow(block.attention, name, width, group)
    for name in block.family.head_totals:
        follow(block.attention, name, width, group * block.head_width)
    return width


def skip_block(block: Block, extent: Extent | None = None) -> Width:
    """Let a block be skipped: the returned width, one of the extent's, is 1 where it runs and 0 where it does not."""
    refuse_pinned_block(block)
    depth = Width(1, least=0, extent=extent)
    layer = getattr(block.attention, "layer_idx", None)
    skip(block.module, Skip(depth, block.family.block_returns, layer))
    return depth


def cut_output(model: nn.Module, extent: Extent | None = None) -> Width:
    """Make the output of a bare model nested; the returned width, one of the extent's, counts its dimensions."""
    anatomy = Anatomy.of(model)
    if anatomy.model is not anatomy.base:
        raise ViewError(
            f"the outputs of a {type(anatomy.model).__name__} are those of its head, and nested dimensions are those "
            "of embeddings; leave them out, or give a task of embeddings such as `retrieval`"
        )
    width = Width(_dimensions(anatomy) or anatomy.hidden, extent=extent)
    cut(anatomy.base, width)
    return width


def restore_output(model: nn.Module) -> None:
    """Let a bare model show as many dimensions as its config tells."""
    if getattr(getattr(model, "config", None), OUTPUT_DIMENSIONS, None) is None:
        return
    anatomy = Anatomy.of(model)
    dimensions = _dimensions(anatomy)
    if anatomy.model is anatomy.base and dimensions is not None:
        cut(anatomy.base, Width(anatomy.hidden, dimensions))


def _dimensions(anatomy: Anatomy) -> int | None:
    dimensions = getattr(anatomy.config, OUTPUT_DIMENSIONS, None)
    if dimensions is not None and (type(dimensions) is not int or not 0 < dimensions <= anatomy.hidden):
        raise ViewError(
            f"`{OUTPUT_DIMENSIONS}` of the config is `{dimensions}`, and the model has {anatomy.hidden}; give a number "
            "from 1 to that, or leave it out"
        )
    return dimensions


def _whole(matrices: list[Matrix]) -> list[tuple[Matrix, int]]:
    """The modules that hold these matrices, each once, with the number of parts fused in it."""
    modules: dict[nn.Module, tuple[Matrix, int]] = {}
    for matrix in matrices:
        count = 1 if matrix.part is None else matrix.part.count
        modules[matrix.module] = (Matrix(matrix.root, matrix.path), count)
    return list(modules.values())
