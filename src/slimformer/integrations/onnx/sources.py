"""The model an export starts from, and copies of it to work on."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from slimformer.anatomy import Anatomy
from slimformer.artifact.storage.packed import keep_packed
from slimformer.errors import ArtifactError
from slimformer.inference.door import open_model
from slimformer.views import attached, packed_weights, unround_activations
from slimformer.views.attention import use_attention

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from slimformer.integrations.onnx.exporting import Numbers

#: The attention that is traced: plain products and a softmax, which every runtime has.
ATTENTION = "eager"


def find_model(
    model: nn.Module | str | Path,
    base: str | Path | None = None,
    *,
    cast_base: bool = False,
    check: bool = True,
    size: str | None = None,
) -> PreTrainedModel:
    """The model that was given or named, checked for what an export cannot do.

    Args:
        model: A Transformers model; or an artifact, a folder, a Hub name or an alias.
        base: Where the base of a mask is, if it has moved.
        cast_base: Whether that base may have been cast to 16 bits, which changes answers a little.
        check: Whether an artifact must answer as recorded at saving; its sums are compared in any case.
        size: Which size of an elastic model, such as `S` or one for each block; by default the largest.

    Raises:
        UnknownFamilyError: Where the family is none that slimformer knows.
        ArtifactError: Where a view is still on a weight.
    """
    loaded: nn.Module
    if isinstance(model, str | Path):
        loaded = open_model(model, base=base, cast_base=cast_base, check=check, size=size, processor=False).model
    else:
        loaded = model
    found = cast("PreTrainedModel", Anatomy.of(loaded).model)
    for at in attached(found):
        raise ArtifactError(f"`{at.path}` still has a view on it; call `slimformer.views.bake` before the export")
    return found


def check_numbers(model: nn.Module, numbers: Numbers | None) -> Numbers:
    """The numbers to export in: those asked for if the model has them, by default those it has."""
    formats = {weight.format.name for weight in packed_weights(model).values()}
    if numbers is None:
        return "packed" if formats else "float"
    if numbers == "packed" and not formats:
        raise ArtifactError(
            "the model has no packed weights; run `slimformer quantize` first, or export with numbers `int8`"
        )
    if numbers not in ("float", "int8", "packed") and numbers not in formats:
        seen = f"its weights are {', '.join(sorted(formats))}" if formats else "its weights are floats"
        raise ArtifactError(
            f"the model has no {numbers} weights ({seen}); run `slimformer quantize --weights {numbers}` first, "
            "or export with other numbers"
        )
    return numbers


def working_copies(model: PreTrainedModel) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two copies in eval mode: the model as it is, and one to be changed and traced, with activations left alone.

    The copies share their weights with the model unless it is elsewhere than on the CPU or no float32.
    """
    plain = all(
        tensor.device.type == "cpu" and (tensor.dtype == torch.float32 or not tensor.is_floating_point())
        for tensor in chain(model.parameters(), model.buffers())
    )
    source = _copy(model) if plain else _in_float(model)
    source.eval()
    traced = _copy(source)
    unround_activations(traced)
    use_attention(traced, ATTENTION)
    for each in (source, traced):
        each.config.use_cache = False
    return source, traced


def _in_float(model: PreTrainedModel) -> PreTrainedModel:
    """A copy on the CPU in float32, whose packed weights are exactly what their codes say."""
    copied: PreTrainedModel = copy.deepcopy(model).to("cpu", torch.float32)  # type: ignore[arg-type]
    on_cpu = {
        name: replace(weight, codes=weight.codes.cpu(), scales=weight.scales.cpu().float())
        for name, weight in packed_weights(copied).items()
    }
    keep_packed(copied, on_cpu)
    return copied


def _copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules; the tensors are those of the model."""
    packed = (tensor for weight in packed_weights(model).values() for tensor in (weight.codes, weight.scales))
    kept = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers(), packed)}
    return copy.deepcopy(model, kept)
