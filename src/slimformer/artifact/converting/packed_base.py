"""A packed model as the base of masks: its weights as floats, which views can stand on, and what they are packed as.

A weight that is dropped becomes the code that stands for 0, so what a mask makes of packed weights can be packed again.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from slimformer import models
from slimformer.artifact.storage.quantizer import METHOD, adopt
from slimformer.errors import ArtifactError
from slimformer.operators import expand
from slimformer.views import round_activations, rounding_of, unrounded
from slimformer.views.packed import packed_of, packed_weights, set_packed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel


def is_packed(base: str | Path) -> bool:
    """Whether the weights of a checkpoint are packed, or its activations rounded."""
    described: Any = getattr(models.load_config(base), "quantization_config", None)
    method = described.get("quant_method") if isinstance(described, dict) else getattr(described, "quant_method", None)
    return bool(method == METHOD)


def load_under(base: str | Path, architecture: Any, config: PretrainedConfig | None = None) -> PreTrainedModel:
    """A base under the head of a class, with weights in floats; those that it has not are drawn.

    Args:
        base: An alias, a folder or a Hub name.
        architecture: The class.
        config: What the model is to be built by; by default the config of the base.
    """
    if config is not None and is_packed(base):
        config.quantization_config = models.load_config(base).quantization_config
    settings: dict[str, Any] = {} if config is None else {"config": config}
    return hold_as_floats(models.load_model(base, architecture, **settings).eval(), base)


def hold_as_floats(model: PreTrainedModel, base: str | Path) -> PreTrainedModel:
    """Give a model that was loaded from a base floats for weights, and have it round activations as the base does.

    What the weights are packed as stays noted. A model on a base that is not packed stays as it is.
    """
    if not is_packed(base):
        return model
    expand(model)
    if not getattr(model, "is_quantized", False):  # the base was put under another head than its own
        own = models.load_model(base, models.stored_class(models.load_config(base), str(base)))
        _go_by(model, cast("PreTrainedModel", own.base_model))
    return model


def _go_by(model: PreTrainedModel, bare: PreTrainedModel) -> None:
    expand(bare)
    modules = dict(model.base_model.named_modules())
    for path, module in bare.named_modules():
        packed = packed_of(module)
        if packed is not None and path in modules:
            set_packed(modules[path], packed)
    round_as(model, bare)


def round_as(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Let a model round activations as another one does, and be saved as a model that does."""
    rounding = rounding_of(other)
    if rounding is not None and rounding_of(model) is None:
        round_activations(model, rounding)
    adopt(model)


def plain_config(model: PreTrainedModel) -> PretrainedConfig:
    """A copy of a model's config that does not tell of packed weights and rounded activations."""
    with unrounded(model):  # the config names our attention while it rounds
        config = copy.deepcopy(model.config)
    config.__dict__.pop("quantization_config", None)
    return config


def note_masked(model: PreTrainedModel, bits: Mapping[str, Tensor]) -> None:
    """Note what masked weights are packed as: those dropped by the code for 0.

    Args:
        model: A model whose float weights are masked already.
        bits: Name of a weight → its bits.
    """
    check_maskable(model, bits)
    for name, packed in packed_weights(model).items():
        if name in bits:
            set_packed(model.get_submodule(name.rpartition(".")[0]), packed.masked(bits[name]))


def check_maskable(model: PreTrainedModel, names: Collection[str]) -> None:
    """Refuse to mask packed weights of a format without a code for 0, such as binary."""
    for name, packed in packed_weights(model).items():
        if name in names and packed.format.zero is None:
            raise ArtifactError(
                f"`{name}` is packed as `{packed.format.name}`, which has no code for a weight that is dropped; mask a "
                "base in ternary, int4 or int8, or the float model it was made from"
            )
