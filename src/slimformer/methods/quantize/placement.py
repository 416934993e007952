"""Which numbers of a model are quantized: views on its matrices, rounding on what they read.

Matrices of the blocks, the pooler and the word embedding; what the paper leaves in float stays in float: embeddings of
positions and types, norms, biases, the task head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.anatomy import Anatomy, Matrix
from slimformer.views import BinaryView, IntegerView, Rounding, TernaryView, attach, round_activations
from slimformer.views.rounding import tied_head

if TYPE_CHECKING:
    from torch import nn

    from slimformer.methods.quantize.config import NumberOptions, Weights
    from slimformer.views import QuantizedView
    from slimformer.views.quantized import Per


def quantize_numbers(model: nn.Module, options: NumberOptions) -> nn.Module:
    """Put views on a model's weights and round its activations, as the options say; nothing is lost yet."""
    anatomy = Anatomy.of(model)
    if options.weights != "float":
        for matrix in _matrices(anatomy, fused=options.granularity != "matrix"):
            attach(matrix, _view(options.weights, options.granularity, options))
    embedding = options.weights if options.embedding is None else options.embedding
    table = anatomy.word_embedding
    if embedding != "float" and table is not None:
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
    found = [matrix for block in anatomy.blocks for matrix in block.matrices.values()]
    if fused:
        found = [Matrix(matrix.root, matrix.path) for matrix in {matrix.path: matrix for matrix in found}.values()]
    return found if anatomy.pooler is None else [*found, anatomy.pooler]


def _view(weights: Weights, per: Per, options: NumberOptions) -> QuantizedView:
    clip = options.weight_clip or None
    size = options.group_size if per == "group" else None
    match weights:
        case "ternary":
            return TernaryView(per, clip, size)
        case "binary":
            return BinaryView(per, clip, size)
        case "2" | "4" | "8":
            return IntegerView(int(weights), per, clip, size)  # type: ignore[arg-type]
        case _:
            raise AssertionError(weights)
