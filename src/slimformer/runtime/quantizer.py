"""Packed models in Transformers: `from_pretrained` and `pipeline` read them, `save_pretrained` writes them.

In the file a packed weight is two tensors, `NAME.weight.LAYOUT` and `NAME.weight.LAYOUT_scales`; the config's
`quantization_config` tells which layouts there are and how activations are rounded. Importing this module tells
Transformers of them; `slimformer.registration` sees to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from slimformer.errors import ArtifactError
from slimformer.runtime.packed import file_tensors, packed_weights
from slimformer.runtime.packing import layout_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel

#: What `quant_method` says in the config of a packed model.
METHOD = "slimformer"
VERSION = 1


@register_quantization_config(METHOD)
class PackedConfig(QuantizationConfigMixin):
    """How the weights of a checkpoint are packed and its activations rounded.

    Args:
        layouts: Names of the layouts its weights are in.
        group_size: Columns of a weight that share a scale, where groups do.
        activations: Settings of `views.Rounding`; None to leave activations alone.
        version: Version of this description.
    """

    def __init__(
        self,
        layouts: list[str] | tuple[str, ...] = (),
        group_size: int | None = None,
        activations: dict[str, Any] | None = None,
        version: int = VERSION,
        quant_method: str = METHOD,
        **unknown: Any,
    ) -> None:
        if version != VERSION or unknown:
            seen = f"version {version}" if version != VERSION else f"`{next(iter(unknown))}`"
            raise ArtifactError(
                f"`quantization_config` of the checkpoint has {seen}, and this slimformer knows version {VERSION}; "
                "install the version that wrote it"
            )
        self.quant_method = quant_method  # type: ignore[assignment]  # a name of our own
        self.version = version
        self.layouts = [name for name in layouts if layout_of(name)]
        self.group_size = group_size
        self.activations = activations

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
            sorted({weight.layout for weight in packed}),
            sizes.pop() if sizes else None,
            None if rounding is None else rounding.spec(),
        )


@register_quantizer(METHOD)
class PackedQuantizer(HfQuantizer):
    """Loads packed weights as the float ones they stand for, and rounds activations as the model was trained to."""

    requires_calibration = True
    quantization_config: PackedConfig

    def get_weight_conversions(self) -> list[Any]:
        """What becomes of the tensors in the file: each pair of codes and scales one weight."""
        from slimformer.runtime.unpacking import converter_for

        config = self.quantization_config
        return [converter_for(layout, config.group_size) for layout in config.layouts]

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        """Leave scales in their own precision; the weight gets the model's."""
        from slimformer.runtime.unpacking import is_unpacking

        return None if is_unpacking(converter) else super().get_new_dtype(converter, param, dtype)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        from slimformer.runtime.unpacking import is_unpacking, raise_fault
        from slimformer.views import Rounding, round_activations

        raise_fault(model)
        # Saving goes by the packed weights that were kept, not by undoing what loading did.
        loaded: Any = model
        loaded._weight_conversions = [each for each in loaded._weight_conversions if not is_unpacking(each)] or None
        if self.quantization_config.activations is not None:
            round_activations(model, Rounding(**self.quantization_config.activations))
        return model

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What `save_pretrained` writes."""
        from transformers.modeling_utils import remove_tied_weights_from_state_dict

        return file_tensors(model, remove_tied_weights_from_state_dict(model.state_dict(), model)), {}

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
