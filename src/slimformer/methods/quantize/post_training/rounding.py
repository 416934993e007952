"""A whole model rounded with error compensation: the embedding first, then block after block (arXiv 2210.17323)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from slimformer.anatomy import Anatomy
from slimformer.anatomy.tied import tied_modules
from slimformer.formats import Granularity, find_format
from slimformer.methods.quantize.config import FLOAT
from slimformer.methods.quantize.post_training.calibration import Walk
from slimformer.methods.quantize.post_training.compensation import compensate, fit_scales
from slimformer.methods.quantize.student import rounding_for
from slimformer.views import QuantizedWeight, round_activations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from slimformer.anatomy import Matrix
    from slimformer.formats import NumberFormat
    from slimformer.methods.quantize.config import NumberOptions
    from slimformer.methods.quantize.post_training.calibration import Batch


@torch.no_grad()
def round_model(model: nn.Module, batches: Sequence[Batch], options: NumberOptions, name: str) -> list[QuantizedWeight]:
    """Quantize a model in place on what it is given to read; return the weights as codes and scales.

    Args:
        model: The float model in eval mode; its activations are rounded afterwards where the options say so.
        batches: Examples without padding.
        options: Formats, and what shares a scale.
        name: What the model is called in messages.
    """
    rounded = _Rounded(model)
    embedding = options.weights if options.embedding is None else options.embedding
    table = Anatomy.of(model).word_embedding
    if embedding != FLOAT and table is not None:
        rounded.round_table(table, find_format(embedding), tied_modules(Anatomy.of(model)))
    rounding = rounding_for(options)
    if rounding is not None:
        round_activations(model, rounding)
    number_format = find_format(options.weights)
    granularity = Granularity(options.granularity, options.group_size)

    def quantize(matrices: Sequence[Matrix], gram: Tensor) -> None:
        for matrix in matrices:
            rounded.add(
                matrix, number_format, granularity, *compensate(matrix.weight, gram, number_format, granularity)
            )

    Walk(model, batches, name).quantize(quantize)
    return rounded.weights


class _Rounded:
    """Weights that were rounded, by the names of their modules."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: list[QuantizedWeight] = []
        self._paths = {id(module): path for path, module in model.named_modules()}

    def add(
        self,
        matrix: Matrix,
        number_format: NumberFormat,
        granularity: Granularity,
        codes: Tensor,
        scales: Tensor,
        shared_with: Sequence[nn.Module] = (),
    ) -> None:
        """Note a weight, and let the model compute with it from now on."""
        shared = [self._paths[id(module)] for module in shared_with]
        path, transposed = self._paths[id(matrix.module)], matrix.transposed
        weight = QuantizedWeight(path, number_format, codes, scales, granularity.group_size, transposed, shared)
        self.weights.append(weight)
        matrix.write(weight.weight)

    def round_table(self, table: Matrix, number_format: NumberFormat, shared_with: Sequence[nn.Module]) -> None:
        """Round an embedding, whose rows meet no inputs that could make up for anything."""
        granularity = Granularity("row")
        scales = fit_scales(table.weight, table.weight.new_ones(table.shape[1]), number_format, granularity)
        codes = number_format.nearest(table.weight, scales).to(torch.int8)
        self.add(table, number_format, granularity, codes, scales, shared_with)
