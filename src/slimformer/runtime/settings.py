"""The config of a model, as anyone may have changed it, read with care."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.runtime.checkpoint import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Rounding of activations that the kernels do.
ROUNDING = {"bits": 8, "per": "token", "clip": None, "symmetric": True}
#: Says in a config that blocks have widths of their own, which their weights tell too; nothing is rounded.
NARROWED = "slimformer-blocks"
#: Says in a config of a model without a head how many dimensions its hidden states show.
OUTPUT_DIMENSIONS = "output_dimensions"
#: Activations by their names in configs, and what the kernels call them.
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
#: No number of a config reaches it.
MOST = 1 << 24


class Settings:
    """A config, read with care.

    Args:
        config: As it was read from JSON.
        folder: Where it lies, for messages.
    """

    def __init__(self, config: Mapping[str, Any], folder: str | Path) -> None:
        self.config = config
        self.folder = folder

    def count(self, *names: str) -> int:
        """A number, by whichever name it has."""
        value = next((self.config[name] for name in names if name in self.config), None)
        if not isinstance(value, int) or not 0 <= value < MOST:
            raise self.wrong(names[0], value)
        return value

    def side(self, name: str) -> int:
        """The side of a square, given once or twice."""
        value = self.config.get(name)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            value = value[0]
        if not isinstance(value, int) or not 0 < value < MOST:
            raise self.wrong(name, value)
        return value

    def dimensions(self) -> int | None:
        """How many dimensions hidden states show; None for all."""
        value = self.config.get(OUTPUT_DIMENSIONS)
        if value is not None and (type(value) is not int or not 0 < value <= self.count("hidden_size", "dim")):
            raise self.wrong(OUTPUT_DIMENSIONS, value)
        return value

    def epsilon(self, unsaid: float) -> float:
        """What is added to a variance; the other where a config does not say it."""
        name = next((name for name in ("norm_eps", "rms_norm_eps") if name in self.config), "layer_norm_eps")
        value = self.config.get(name, unsaid)
        if not isinstance(value, float) or not 0 <= value < 1:
            raise self.wrong(name, value)
        return value

    def activation(self) -> str:
        """That of the feed-forward layers."""
        names = ("hidden_act", "activation", "hidden_activation")
        value = next((self.config[name] for name in names if name in self.config), None)
        if value not in ACTIVATIONS:
            raise EngineError(
                f"`{self.folder}` has the activation `{value}`; the engine has {', '.join(sorted(ACTIVATIONS))}"
            )
        return ACTIVATIONS[str(value)]

    def neurons(self, name: str, blocks: int) -> list[int]:
        """Neurons of each block, by the setting for all of them or as the config describes them one by one."""
        quantization = self.config.get("quantization_config")
        described = quantization.get("blocks") if isinstance(quantization, dict) else None
        if described is None:
            return [self.count(name)] * blocks
        each_one = described if isinstance(described, list) and len(described) == blocks else [None] * blocks
        counts = [each.get("neurons") if isinstance(each, dict) else None for each in each_one]
        known = [count for count in counts if type(count) is int and 0 < count < MOST]
        if len(known) != blocks:
            raise self.wrong("blocks", described)
        return known

    def group_size(self) -> int | None:
        """Columns of a packed weight that share a scale, where groups do."""
        quantization = self.config.get("quantization_config")
        size = quantization.get("group_size") if isinstance(quantization, dict) else None
        if size is not None and (type(size) is not int or not 0 < size < MOST):
            raise self.wrong("group_size", size)
        return size

    def widths_differ(self) -> bool:
        """Whether the config gives each block widths of its own."""
        quantization = self.config.get("quantization_config")
        return isinstance(quantization, dict) and quantization.get("blocks") is not None

    def rounds(self) -> bool:
        """Whether matrices are packed and activations rounded; else all is in floats."""
        quantization = self.config.get("quantization_config")
        if quantization is None or (isinstance(quantization, dict) and quantization.get("quant_method") == NARROWED):
            return False
        if not isinstance(quantization, dict) or quantization.get("activations") != ROUNDING:
            raise EngineError(
                f"`{self.folder}` does not round activations to 8 bits for each token; the engine does, so quantize "
                "the model with `--activations int8 --activation-scale token`"
            )
        return True

    def refuse_others(self) -> None:
        """Refuse what a config can ask of a family and the engine does not do."""
        others = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
        for name, usual in others.items():
            value = self.config.get(name)
            if value not in (None, usual):
                raise EngineError(f"`{self.folder}` has `{name}` `{value}`; the engine runs encoders with `{usual}`")

    def wrong(self, name: str, value: Any) -> EngineError:
        """What to say of a setting that cannot be."""
        return EngineError(f"config.json of `{self.folder}` has `{name}` `{value}`; copy it again")
