"""Nested sizes of one block: slices on all the matrices that must agree, under one width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.anatomy.block import refuse_pinned_heads
from slimformer.anatomy.family import Fused
from slimformer.anatomy.matrix import Matrix
from slimformer.views.slice import SliceView, Width, follow
from slimformer.views.stack import attach

if TYPE_CHECKING:
    from torch import nn

    from slimformer.anatomy.block import Block


def slice_neurons(block: Block) -> Width:
    """Make the feed-forward layer of a block nested; the returned width counts neurons."""
    width = Width(block.ffn_width)
    rows = [matrix for matrix in (block.up, block.gate) if matrix is not None]
    for module, chunks in _whole(rows):
        attach(module, SliceView(width, "rows", chunks=chunks))
    attach(Matrix(block.base, block.down.path), SliceView(width, "columns"))
    return width


def slice_heads(block: Block) -> Width:
    """Make the attention of a block nested; the returned width counts key-value heads.

    Each key-value head keeps the query heads it serves.
    """
    refuse_pinned_heads(block.family)
    group = block.heads // block.key_value_heads
    width = Width(block.key_value_heads)
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


def _whole(matrices: list[Matrix]) -> list[tuple[Matrix, int]]:
    """The modules that hold these matrices, each once, with the number of parts fused in it."""
    modules: dict[nn.Module, tuple[Matrix, int]] = {}
    for matrix in matrices:
        count = 1 if matrix.part is None else matrix.part.count
        modules[matrix.module] = (Matrix(matrix.root, matrix.path), count)
    return list(modules.values())
