"""What Transformers does with packed tensors while it loads a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from transformers.core_model_loading import ConversionOps, WeightConverter

from slimformer.anatomy.matrix import is_conv1d
from slimformer.errors import ArtifactError
from slimformer.runtime.packed import PackedWeight, add_packed

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

_FAULT = "_slimformer_fault"


def converter_for(layout: str, group_size: int | None) -> WeightConverter:
    """Makes one weight of each pair of codes and scales in a layout."""
    names = [rf"weight\.{layout}$", rf"weight\.{layout}_scales$"]
    return WeightConverter(names, "weight", [Unpack(layout, group_size)])


def is_unpacking(converter: Any) -> bool:
    """Whether a step of loading is one of ours."""
    return any(isinstance(operation, Unpack) for operation in getattr(converter, "operations", ()))


def raise_fault(model: nn.Module) -> None:
    """Raise what was wrong with the first weight that could not be unpacked, if there was one."""
    fault: str | None = model.__dict__.pop(_FAULT, None)
    if fault is not None:
        raise ArtifactError(fault)


class Unpack(ConversionOps):
    """Turns codes and scales into the weight they stand for, and lets the model keep the packed form."""

    def __init__(self, layout: str, group_size: int | None) -> None:
        self.layout = layout
        self.group_size = group_size

    @torch.no_grad()
    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        """The weight, by its full name."""
        name: str = kwargs["full_layer_name"]
        model: PreTrainedModel = kwargs["model"]
        module = model.get_submodule(name.rpartition(".")[0])
        held = cast("Tensor", module.weight)
        try:
            packed = self._read(input_dict, module, held)
            weight = packed.weight().to(held.dtype)
        except ArtifactError as error:
            # Transformers would hide it in a report; it is raised when all weights have been read.
            model.__dict__.setdefault(_FAULT, f"`{name}` cannot be unpacked: {error}")
            return {name: torch.zeros(held.shape, dtype=held.dtype)}
        add_packed(model, name, packed)
        return {name: weight}

    def _read(self, tensors: dict[str, Any], module: nn.Module, held: Tensor) -> PackedWeight:
        found = {
            pattern.endswith("_scales$"): each[0] if isinstance(each, list) else each
            for pattern, each in tensors.items()
        }
        if len(found) != 2:
            raise ArtifactError("it has codes or scales, not both; copy the checkpoint again")
        codes, scales = found[False], found[True]
        transposed = is_conv1d(module)
        rows, columns = held.shape[::-1] if transposed else held.shape
        size = self.group_size if scales.shape[-1] > 1 else None
        groups = 1 if size is None else -(-columns // size)
        if len(codes) != rows or tuple(scales.shape) not in ((1, 1), (rows, groups)):
            raise ArtifactError(
                f"codes of shape {list(codes.shape)} with scales of shape {list(scales.shape)} are no weight of "
                f"shape {[rows, columns]}; copy the checkpoint again"
            )
        return PackedWeight(self.layout, codes, scales, columns, size, transposed)
