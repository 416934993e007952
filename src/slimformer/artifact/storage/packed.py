"""Packed models: which weights are packed, what their file holds, and how the folder is read.

`slimformer.views.packed` keeps the packed form of weights, which are floats beside it where no operator reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slimformer.artifact.layout import CONFIG, PACKED
from slimformer.artifact.storage.handler import indexed_files
from slimformer.artifact.storage.plain import PlainStorage
from slimformer.errors import ArtifactError
from slimformer.files import JsonError, read_json
from slimformer.formats import PackedWeight
from slimformer.models.weights import CONFIG_BYTES, PLAIN_WEIGHTS
from slimformer.views.packed import (
    SMALL_FLOAT,
    fits_small_float,
    forget_packed,
    packed_weights,
    set_packed,
    small_float,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest
    from slimformer.views import QuantizedWeight


def keep_packed(model: nn.Module, weights: Mapping[str, PackedWeight]) -> None:
    """Let a model go by packed weights from now on; the float ones become what these say.

    Args:
        model: A model without views.
        weights: Name of the weight in the model's state → its packed form.
    """
    from slimformer.operators import expand

    forget_packed(expand(model))
    state = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, packed in weights.items():
            state[name].copy_(packed.weight())
            set_packed(model.get_submodule(name.rpartition(".")[0]), packed)


def keep_quantized(model: nn.Module, weights: Iterable[QuantizedWeight], small: bool = False) -> None:
    """Let a baked model go by the codes its views had, and by small floats in everything else.

    Args:
        model: The model after `bake`.
        weights: What `quantized_weights` gave before it.
        small: Whether formats that have a smaller layout are stored in it.
    """
    stored = stored_tensors(model)
    packed = {}
    for weight in weights:
        # Of a weight that is tied, the file has one name only.
        names = [f"{path}.weight" for path in (weight.path, *weight.shared_with)]
        packed[next((name for name in names if name in stored), names[0])] = PackedWeight.of(
            weight.format,
            weight.codes,
            weight.scales,
            weight.group_size,
            transposed=weight.transposed,
            small=small,
        )
    keep_packed(model, packed)
    if not packed:
        return
    as_packed = {model.get_parameter(name).data_ptr() for name in packed}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.data_ptr() not in as_packed and fits_small_float(tensor):
                tensor.copy_(tensor.to(SMALL_FLOAT))


def file_tensors(model: nn.Module, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a file of a packed model holds: packed weights, and the rest as small as it goes without loss.

    Args:
        model: The model.
        stored: The tensors that a plain checkpoint of it would hold.

    Raises:
        ArtifactError: Where a weight is not the packed one any more.
    """
    packed = packed_weights(model)
    _check_unchanged(packed, stored)
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if name in packed:
            tensors |= packed[name].tensors(name)
        else:
            tensors[name] = small_float(tensor) if packed else tensor
    return tensors


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a plain checkpoint of a model would hold: of weights that are tied, one."""
    from slimformer.operators import without_tied

    return without_tied(model.state_dict(), model)


def _check_unchanged(packed: Mapping[str, PackedWeight], stored: Mapping[str, Any]) -> None:
    from slimformer.operators import PackedTensor

    for name, weight in packed.items():
        if name not in stored:
            raise ArtifactError(f"`{name}` is packed and is not among the weights of a checkpoint of this family")
        held = stored[name].detach()
        if isinstance(held, PackedTensor):  # the packed weight is made of it
            continue
        # A model may be held in a shorter type than its scales are of; what it holds is rounded from the packed weight.
        if not torch.equal(held, weight.weight().to(held)):
            raise ArtifactError(
                f"`{name}` was changed after it was packed, so its codes are not its weight any more; "
                "train the float model instead, and quantize it again"
            )


class PackedStorage(PlainStorage):
    """Several codes to a byte; the config's `quantization_config` says how."""

    name = "packed"
    relation = "quantized"
    no_base = "holds quantized weights, which are not trained on; give the float model it was made from"
    weights = (PACKED, *PLAIN_WEIGHTS)
    imports = ("import slimformer  # teaches Transformers to read packed weights",)
    alone = "With Transformers, once slimformer is imported:"

    def recognises(self, folder: Path) -> bool:
        """A checkpoint whose config names our quantization."""
        return super().recognises(folder) and _described(folder).get("quant_method") == "slimformer"

    def tensor_files(self, folder: Path) -> list[Path]:
        """The file of packed weights; the first version kept them under the names of plain ones."""
        first = _described(folder).get("version") == 1
        return indexed_files(folder, PLAIN_WEIGHTS if first else (PACKED,))

    def describe(self, model: PreTrainedModel) -> dict[str, Any]:
        """The layouts of the packed weights."""
        return {"packed": sorted({weight.layout.name for weight in packed_weights(model).values()}) or None}

    def card_sizes(self, manifest: Manifest) -> list[tuple[str, str]]:
        """What the weights are packed as."""
        return [("Packed as", ", ".join(manifest.model.packed))] if manifest.model.packed else []


def _described(folder: Path) -> dict[str, Any]:
    """`quantization_config` of a folder's config; empty where there is none."""
    try:
        described = read_json(folder / CONFIG, CONFIG_BYTES)["quantization_config"]
    except (OSError, JsonError, KeyError, TypeError):
        return {}
    return described if isinstance(described, dict) else {}
