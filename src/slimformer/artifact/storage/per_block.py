"""Models whose blocks differ in width, or have fewer heads than their config can say: narrowed before loading.

Transformers builds the model that the config describes; then the blocks are narrowed as `quantization_config` says, and
only then weights are loaded. Importing this module tells Transformers of it. Without slimformer it finds no weights,
because their file has a name of its own, and refuses the folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from slimformer.artifact.layout import CONFIG, PER_BLOCK
from slimformer.artifact.storage.plain import PlainStorage, save_under
from slimformer.errors import ArtifactError, CheckpointError
from slimformer.models import load_config
from slimformer.models.widths import METHOD, VERSION, describe_widths, described_widths, narrow

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest


@register_quantization_config(METHOD)
class BlocksConfig(QuantizationConfigMixin):
    """The widths of a checkpoint's blocks.

    Args:
        blocks: Neurons and heads, block by block.
        version: Version of this description.
    """

    def __init__(self, blocks: Any = None, version: int = VERSION, quant_method: str = METHOD, **unknown: Any) -> None:
        if unknown:
            raise ArtifactError(
                f"`quantization_config` of the checkpoint has `{next(iter(unknown))}`, which this slimformer does not "
                "know; install the version that wrote it"
            )
        self.quant_method = quant_method  # type: ignore[assignment]  # a name of our own
        self.version = version
        self.blocks = blocks


@register_quantizer(METHOD)
class BlocksLoader(HfQuantizer):
    """Narrows a model between its making and the loading of its weights; nothing is quantized."""

    requires_calibration = True

    def update_attn_implementation(self, config: Any) -> Any:
        """Name the file of the weights; Transformers asks for it right after this."""
        config.transformers_weights = PER_BLOCK
        return config

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        widths = described_widths(model.config)
        assert widths is not None
        narrow(model, widths)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        # What is left is a model as any other; in a config that is saved the name of the file would lead Transformers
        # to it without slimformer.
        model.config.transformers_weights = None
        self.remove_quantization_config(model)  # type: ignore[no-untyped-call]
        for module in model.modules():
            getattr(module, "config", model.config).__dict__.pop("_is_quantized", None)
        keep_widths(model)
        return model

    def is_serializable(self) -> bool:
        """Such models can be saved again."""
        return True

    @property
    def is_trainable(self) -> bool:
        """The weights are floats like any others."""
        return True


def keep_widths(model: PreTrainedModel) -> None:
    """Let the config of a model give its widths block by block, and `save_pretrained` write what needs them."""
    described = {"quant_method": METHOD, "version": VERSION, "blocks": describe_widths(model)}
    model.config.quantization_config = described
    save_under(model, PER_BLOCK)


class PerBlockStorage(PlainStorage):
    """A checkpoint whose config gives the widths of each block."""

    name = "per-block"
    no_base = (
        "has blocks of different widths, which this method does not keep; extract one width for all blocks instead, "
        "such as: slimformer extract ELASTIC --allocation M --out PLAIN"
    )
    weights = (PER_BLOCK,)
    imports = ("import slimformer  # teaches Transformers to read blocks of different widths",)
    alone = "With Transformers, once slimformer is imported:"

    def recognises(self, folder: Path) -> bool:
        """A checkpoint whose config gives widths."""
        if not super().recognises(folder) or not (folder / CONFIG).is_file():
            return False
        try:
            return described_widths(load_config(folder)) is not None
        except CheckpointError as error:
            raise ArtifactError(str(error)) from error

    def write(self, stage: Path, model: PreTrainedModel, processor: Any, base: Any) -> None:
        """Write the weights and the widths."""
        keep_widths(model)
        super().write(stage, model, processor, base)

    def card_sizes(self, manifest: Manifest) -> list[tuple[str, str]]:
        """That blocks differ."""
        return [("Blocks", "of different widths")]
