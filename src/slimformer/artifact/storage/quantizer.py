"""Packed models in Transformers: `from_pretrained` and `pipeline` read them, `save_pretrained` writes them.

In the file a packed weight is two tensors, `NAME.weight.LAYOUT` and `NAME.weight.LAYOUT_scales`; the config's
`quantization_config` tells which layouts there are and how activations are rounded. Importing this module tells
Transformers of them; `slimformer.integrations.transformers` sees to it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from slimformer.anatomy.matrix import is_conv1d
from slimformer.artifact.layout import PACKED
from slimformer.artifact.storage.packed import file_tensors, stored_tensors
from slimformer.artifact.storage.plain import save_plain, save_under
from slimformer.errors import ArtifactError, FormatError, describe
from slimformer.formats import PackedWeight, find_layout
from slimformer.models.widths import PACKED as PACKED_METHOD
from slimformer.models.widths import describe_widths, described_widths, narrow, needs_widths
from slimformer.views.packed import packed_weights, set_packed

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

#: What `quant_method` says in the config of a packed model.
METHOD = PACKED_METHOD
#: Version of the description written, and the newest one read.
VERSION = 2
#: Where the weights lie by version. Under the name of plain weights, that of version 1, Transformers without slimformer
#: took them for such.
WEIGHTS = {1: None, 2: PACKED}
_FAULT = "_slimformer_fault"


@register_quantization_config(METHOD)
class PackedConfig(QuantizationConfigMixin):
    """How the weights of a checkpoint are packed and its activations rounded.

    Args:
        layouts: Names of the layouts its weights are in.
        group_size: Columns of a weight that share a scale, where groups do.
        activations: Settings of `views.Rounding`; None to leave activations alone.
        blocks: Widths of each block, where they are not what the config says; see `models.widths`.
        version: Version of this description.
    """

    def __init__(
        self,
        layouts: list[str] | tuple[str, ...] = (),
        group_size: int | None = None,
        activations: dict[str, Any] | None = None,
        blocks: list[dict[str, int]] | None = None,
        version: int = VERSION,
        quant_method: str = METHOD,
        **unknown: Any,
    ) -> None:
        if version not in WEIGHTS or unknown:
            seen = f"version {version}" if version not in WEIGHTS else f"`{next(iter(unknown))}`"
            raise ArtifactError(
                f"`quantization_config` of the checkpoint has {seen}, and this slimformer knows version {VERSION}; "
                "install the version that wrote it"
            )
        _check_fields(layouts, group_size, activations)
        self.quant_method = quant_method  # type: ignore[assignment]  # a name of our own
        self.version = version
        self.layouts = [_known(name) for name in layouts]
        self.group_size = group_size
        self.activations = activations
        self.blocks = blocks

    @classmethod
    def of(cls, model: nn.Module) -> PackedConfig | None:
        """The description of a model; None where nothing about it is quantized."""
        from slimformer.views import rounding_of

        packed = packed_weights(model).values()
        rounding = rounding_of(model)
        if not packed and rounding is None:
            return None
        sizes = {weight.group_size for weight in packed} - {None}
        assert len(sizes) <= 1, sizes
        return cls(
            sorted({weight.layout.name for weight in packed}),
            sizes.pop() if sizes else None,
            None if rounding is None else rounding.spec(),
            describe_widths(model) if needs_widths(model) else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """As it is written; widths only where there are some, so that the files of other models stay as they are."""
        described: dict[str, Any] = super().to_dict()
        return {name: value for name, value in described.items() if name != "blocks" or value is not None}


def _check_fields(layouts: Any, group_size: Any, activations: Any) -> None:
    """Refuse values that no packed checkpoint has: a config is text that anyone can change."""
    fields = {
        "layouts": (layouts, isinstance(layouts, list | tuple) and all(isinstance(name, str) for name in layouts)),
        "group_size": (group_size, group_size is None or (type(group_size) is int and group_size > 0)),
        "activations": (activations, activations is None or isinstance(activations, dict)),
    }
    for name, (value, fits) in fields.items():
        if not fits:
            raise ArtifactError(
                f"`quantization_config` of the checkpoint has `{name}` `{describe(value)}`, which no packed model has; "
                "copy it again"
            )


def _known(layout: str) -> str:
    try:
        find_layout(layout)
    except FormatError as error:
        raise ArtifactError(f"{error}; install the version of slimformer or the package that wrote it") from error
    return layout


@register_quantizer(METHOD)
class PackedQuantizer(HfQuantizer):
    """Loads packed weights as they are, or as floats where no operator reads them, and rounds activations."""

    requires_calibration = True
    quantization_config: PackedConfig

    def update_attn_implementation(self, config: Any) -> Any:
        """Name the file of the weights; Transformers asks for it right after this."""
        config.transformers_weights = WEIGHTS[self.quantization_config.version]
        return config

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        widths = described_widths(model.config)
        if widths is not None:
            narrow(model, widths)

    def get_weight_conversions(self) -> list[Any]:
        """What becomes of the tensors in the file: each pair of codes and scales one weight."""
        config = self.quantization_config
        return [_converter_for(layout, config.group_size) for layout in config.layouts]

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        """Leave scales in their own precision; the weight gets the model's."""
        return None if _is_unpacking(converter) else super().get_new_dtype(converter, param, dtype)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        from slimformer.operators import expand_others, give_operators
        from slimformer.views import Rounding, round_activations

        _raise_fault(model)
        # In a config that is saved it would lead Transformers to the file without slimformer.
        model.config.transformers_weights = None
        # Saving goes by the packed weights that were kept, not by undoing what loading did.
        loaded: Any = model
        loaded._weight_conversions = [each for each in loaded._weight_conversions if not _is_unpacking(each)] or None
        save_under(model, PACKED)
        give_operators(model)
        if self.quantization_config.activations is not None:
            round_activations(model, Rounding(**self.quantization_config.activations))
        expand_others(model)
        return model

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What `save_pretrained` writes, described as it is written now."""
        self.quantization_config.version = VERSION
        model.config.quantization_config = self.quantization_config
        return file_tensors(model, stored_tensors(model)), {}

    def is_serializable(self) -> bool:
        """Packed models can be saved again."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Packed weights are not trained; the float model they come from is."""
        return False


def adopt(model: PreTrainedModel) -> None:
    """Make a model that was quantized here one that `save_pretrained` writes packed, as if it had been loaded."""
    config = PackedConfig.of(model)
    if config is None:
        return
    adopted: Any = model
    adopted.hf_quantizer = PackedQuantizer(config)
    adopted.config.quantization_config = config
    adopted.quantization_method = METHOD
    adopted.is_quantized = True
    save_under(model, PACKED)


def disown(model: PreTrainedModel) -> None:
    """Make a model that is saved packed a float one, which can be trained; how activations are rounded stays."""
    adopted: Any = model
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        adopted.__dict__.pop(name, None)
    adopted.config.__dict__.pop("quantization_config", None)
    save_plain(model)


def _converter_for(layout: str, group_size: int | None) -> WeightConverter:
    """Makes one weight of each pair of codes and scales in a layout."""
    name = re.escape(layout)
    names = [rf"weight\.{name}$", rf"weight\.{name}_scales$"]
    return WeightConverter(names, "weight", [Unpack(layout, group_size)])


def _is_unpacking(converter: Any) -> bool:
    """Whether a step of loading unpacks weights."""
    return any(isinstance(operation, Unpack) for operation in getattr(converter, "operations", ()))


def _raise_fault(model: nn.Module) -> None:
    """Raise what was wrong with the first weight that could not be unpacked, if there was one."""
    fault: str | None = model.__dict__.pop(_FAULT, None)
    if fault is not None:
        raise ArtifactError(fault)


class Unpack(ConversionOps):
    """Makes one weight of codes and scales, held packed where the operators read it."""

    def __init__(self, layout: str, group_size: int | None) -> None:
        self.layout = layout
        self.group_size = group_size

    @torch.no_grad()
    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        """The weight, by its full name."""
        from slimformer.operators import hold_packed

        name: str = kwargs["full_layer_name"]
        model: PreTrainedModel = kwargs["model"]
        module = model.get_submodule(name.rpartition(".")[0])
        held = cast("Tensor", module.weight)
        try:
            packed = self._read(input_dict, module, held)
            placed = hold_packed(packed, held.dtype)
            weight = packed.weight().to(held.dtype) if placed is None else placed[1]
        except (ArtifactError, FormatError) as error:
            # Transformers would hide it in a report; it is raised when all weights have been read.
            model.__dict__.setdefault(_FAULT, f"`{name}` cannot be unpacked: {error}")
            return {name: torch.zeros(held.shape, dtype=held.dtype)}
        set_packed(module, packed if placed is None else placed[0])
        return {name: weight}

    def _read(self, tensors: dict[str, Any], module: nn.Module, held: Tensor) -> PackedWeight:
        parts = {
            pattern.endswith("_scales$"): each[0] if isinstance(each, list) else each
            for pattern, each in tensors.items()
        }
        if len(parts) != 2:
            raise ArtifactError("it has codes or scales, not both; copy the checkpoint again")
        codes, scales = parts[False], parts[True]
        transposed = is_conv1d(module)
        rows, columns = held.shape[::-1] if transposed else held.shape
        size = self.group_size if scales.shape[-1] > 1 else None
        groups = 1 if size is None else -(-columns // size)
        if len(codes) != rows or tuple(scales.shape) not in ((1, 1), (rows, groups)):
            raise ArtifactError(
                f"codes of shape {list(codes.shape)} with scales of shape {list(scales.shape)} are no weight of "
                f"shape {[rows, columns]}; copy the checkpoint again"
            )
        return PackedWeight(*find_layout(self.layout), codes, scales, columns, size, transposed)
