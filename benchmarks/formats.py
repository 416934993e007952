"""What number formats lose by rounding alone: matrices of MiniLM's blocks and pooler, as a share of their squares."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from transformers import AutoModel

from harness import keep, options
from slimformer import Anatomy, models
from slimformer.formats import Granularity, PackedWeight, find_format
from slimformer.formats.integer import even_levels
from slimformer.registry import FORMATS

if TYPE_CHECKING:
    from torch import Tensor

    from slimformer.formats import NumberFormat

GRANULARITIES = {"row": Granularity("row"), "group of 64": Granularity("group", 64), "matrix": Granularity("matrix")}


def lost(weights: list[Tensor], number_format: NumberFormat, granularity: Granularity) -> float:
    """Squares of the error over squares of the weights."""
    errors = 0.0
    for weight in weights:
        codes, scales = number_format.quantize(weight, granularity)
        errors += float((number_format.dequantize(codes, scales, granularity.group_size) - weight).square().sum())
    return errors / sum(float(weight.square().sum()) for weight in weights)


def bits(weights: list[Tensor], number_format: NumberFormat) -> float:
    """Bits of a weight in the file, with a float32 scale per row."""
    size = 0
    for weight in weights:
        packed = PackedWeight.of(number_format, *number_format.quantize(weight, GRANULARITIES["row"]))
        size += sum(tensor.numel() * tensor.element_size() for tensor in packed.tensors("weight").values())
    return 8 * size / sum(weight.numel() for weight in weights)


def main() -> None:
    """Measure on MiniLM."""
    arguments = options(__doc__).parse_args()
    torch.set_num_threads(arguments.threads)
    anatomy = Anatomy.of(AutoModel.from_pretrained(models.resolve("minilm")))
    blocks = anatomy.blocks[:1] if arguments.tiny else anatomy.blocks
    matrices = [matrix for block in blocks for matrix in block.matrices.values()]
    weights = [matrix.weight.detach() for matrix in matrices + ([anatomy.pooler] if anatomy.pooler else [])]
    formats = {name: find_format(name) for name in FORMATS}
    # What three bits would be with four bits' levels.
    formats["int3 up to the largest weight"] = replace(
        formats["int3"], codes=range(-3, 4), levels=partial(even_levels, 3), fast=formats["int4"].fast
    )
    result: dict[str, dict[str, float]] = {}
    for name, number_format in formats.items():
        errors = {each: lost(weights, number_format, granularity) for each, granularity in GRANULARITIES.items()}
        result[name] = {each: round(error, 5) for each, error in errors.items()}
        if name in FORMATS:
            result[name]["bits"] = round(bits(weights, number_format), 2)
    keep("formats", arguments, {"error": result})


if __name__ == "__main__":
    main()
