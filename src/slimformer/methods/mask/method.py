"""Masking a base for a task (arXiv 2004.12406)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.methods.mask.config import MaskConfig
from slimformer.methods.method import Showcase
from slimformer.methods.task import TaskMethod

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slimformer.artifact.storage.handler import Storage
    from slimformer.methods.mask.scores import Masking
    from slimformer.train import Objective


class Mask(TaskMethod[MaskConfig]):
    """Learn which weights of a base to keep for a task: one bit for each, in a small file on top of the base.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `MaskConfig` and of `RunOptions` (resume, overwrite, quiet, command).

    Example:
        >>> result = mask(model="minilm", task="classification", data="reviews", out="sentiment")
        >>> (result.folder / "mask.safetensors").stat().st_size
    """

    name = "mask"
    config_class = MaskConfig
    leaves = "mask"
    showcase = Showcase("MiniLM, one bit per weight", {"lr": 2e-3})

    masking: Masking

    def check(self) -> None:
        """Refuse a base that could not be told from another before any work."""
        from slimformer.artifact.storage.mask_base import fingerprint_of

        super().check()
        if self.config.out is not None:
            fingerprint_of(self.base)

    def prepare(self, model: PreTrainedModel) -> Objective | None:
        """Freeze the base and put scores on its matrices."""
        from slimformer.methods.mask.scores import Masking

        self.masking = Masking.start(model, self.config)
        return self.masking.objective()

    def finish(self) -> None:
        """Keep the bits alone."""
        self.masking.end(self.model)

    def storage(self) -> Storage:
        """As the bits the run ended with."""
        return self.masking.storage()
