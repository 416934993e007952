"""A packed checkpoint: codes and scales that Transformers reads once slimformer is imported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from slimformer.artifact.layout import CONFIG
from slimformer.artifact.storage.plain import PlainStorage

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest


class PackedStorage(PlainStorage):
    """Several codes to a byte; the config's `quantization_config` says how."""

    name = "packed"
    imports = ("import slimformer  # teaches Transformers to read packed weights",)
    alone = "With Transformers, once slimformer is imported:"

    def recognises(self, folder: Path) -> bool:
        """A checkpoint whose config names our quantization."""
        if not super().recognises(folder):
            return False
        try:
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            return bool(config["quantization_config"]["quant_method"] == "slimformer")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def describe(self, model: PreTrainedModel) -> dict[str, Any]:
        """The layouts of the packed weights."""
        from slimformer.artifact.storage.packed_weights import packed_weights

        return {"packed": sorted({weight.layout.name for weight in packed_weights(model).values()}) or None}

    def card_sizes(self, manifest: Manifest) -> list[tuple[str, str]]:
        """What the weights are packed as."""
        return [("Packed as", ", ".join(manifest.model.packed))] if manifest.model.packed else []
