"""Which numbers of a model are quantized: views on its matrices, rounding on what they read.

Matrices of the blocks, the pooler and the word embedding; what the paper leaves in float stays in float: embeddings of
positions and types, norms, biases, the task head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.anatomy import Anatomy, Matrix
from slimformer.methods.quantize.config import FLOAT
from slimformer.views import QuantizedView, Rounding, attach, round_activations
from slimformer.views.rounding import tied_head

if TYPE_CHECKING:
    from torch import nn

    from slimformer.formats.granularity import Shared
    from slimformer.methods.quantize.config import NumberOptions


def quantize_numbers(model: nn.Module, options: NumberOptions) -> nn.Module:
    """Put views on a model's weights and round its activations, as the options say; nothing is lost yet."""
    anatomy = Anatomy.of(model)
    if options.weights != FLOAT:
        for matrix in _matrices(anatomy, fused=options.granularity != "matrix"):
            attach(matrix, _view(options.weights, options.granularity, options))
    embedding = options.weights if options.embedding is None else options.embedding
    table = anatomy.word_embedding
    if embedding != FLOAT and table is not None:
        view = _view(embedding, "row", options)
        head = tied_head(anatomy)
        attach(table, view)
        if head is not None:
            attach(head, view)
    rounding = rounding_for(options)
    if rounding is not None:
        round_activations(model, rounding)
    return model


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


def _view(weights: str, granularity: Shared, options: NumberOptions) -> QuantizedView:
    size = options.group_size if granularity == "group" else None
    return QuantizedView(weights, granularity, size, clip=options.weight_clip or None)
