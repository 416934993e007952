"""What a name stands for, known before any weight is read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slimformer.artifact.layout import MANIFEST
from slimformer.artifact.storage.precision import store_of
from slimformer.errors import CheckpointError
from slimformer.models import located
from slimformer.models.sentence import SentenceSettings
from slimformer.models.widths import described_widths
from slimformer.registry import STORAGE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig

    from slimformer.artifact import Manifest, TaskRecord
    from slimformer.models.settings import Store


@dataclass(frozen=True)
class Source:
    """What a name stands for, known before any weight is read.

    Args:
        name: As the user gave it.
        config: The model's config.
        manifest: What the artifact says of itself; None for a plain checkpoint.
    """

    name: str
    config: PretrainedConfig
    manifest: Manifest | None = None

    @property
    def architecture(self) -> str:
        """Name of the class the model was saved from; empty where the config names none."""
        return (self.config.architectures or [""])[0]

    @property
    def task(self) -> TaskRecord | None:
        """What an artifact was made for."""
        return None if self.manifest is None else self.manifest.task

    @property
    def storage(self) -> str:
        """How the weights lie in the folder: a name in `registry.STORAGE`."""
        stored = "plain" if self.manifest is None else self.manifest.model.storage
        if stored != "plain" or getattr(self.config, "quantization_config", None) is None:
            return stored
        # Rounded activations alone need slimformer too, and format 1 did not tell.
        return "packed" if described_widths(self.config) is None else "per-block"

    @property
    def store(self) -> Store | None:
        """What `--store` an artifact was saved with; None where its weights are stored as they are loaded."""
        return None if self.manifest is None else store_of(self.manifest.model)

    def sentence(self) -> SentenceSettings | None:
        """How the model's outputs become one vector, where that is recorded."""
        return SentenceSettings.of(self.name)

    @property
    def is_nested(self) -> bool:
        """Whether several sizes are nested in it."""
        nested: bool = STORAGE.get(self.storage).nested
        return nested

    def require(self, accepted: Sequence[str]) -> None:
        """Refuse a model whose weights are stored in a way that a method cannot start from."""
        if self.storage not in accepted:
            reason: str = STORAGE.get(self.storage).no_base
            raise CheckpointError(f"`{self.name}` {reason.format(name=self.name)}")


def is_artifact(name: str | Path) -> bool:
    """Whether a name is that of a folder, or of a model of the Hub, which holds an artifact."""
    return os.path.lexists(located(name) / MANIFEST)
