"""Masking a base for a task (arXiv 2004.12406)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.errors import ConfigError
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
    accepts = ("plain", "packed")
    leaves = "mask"
    showcase = Showcase("MiniLM, one bit per weight", {"lr": 2e-3})

    masking: Masking
    packed: bool

    def check(self) -> None:
        """Refuse a base that could not be told from another before any work."""
        from slimformer.artifact.storage.mask_base import fingerprint_of

        super().check()
        if self.config.out is not None:
            fingerprint_of(self.base)

    def prepare(self, model: PreTrainedModel) -> Objective | None:
        """Freeze the base and put scores on its matrices; packed weights are floats meanwhile."""
        from slimformer.artifact.converting.packed_base import check_maskable, hold_as_floats
        from slimformer.artifact.storage.quantizer import disown
        from slimformer.methods.mask.scores import Masking

        hold_as_floats(model, self.base)
        self.packed = bool(getattr(model, "is_quantized", False))
        if self.packed and self.config.structured is not None:
            raise ConfigError(
                f"`--structured` is `{self.config.structured}`, and `{self.base}` is packed, of which single weights "
                "are masked; leave it out, or give the float model it was made from"
            )
        if self.packed:
            disown(model)
        self.masking = Masking.start(model, self.config)
        check_maskable(model, {f"{place.matrix.path}.weight" for place, _ in self.masking.views})
        return self.masking.objective()

    def finish(self) -> None:
        """Keep the bits alone; what they make of packed weights is packed too."""
        from slimformer.artifact.converting.packed_base import note_masked
        from slimformer.artifact.storage.quantizer import adopt

        self.masking.end(self.model)
        if self.packed:
            note_masked(self.model, self.masking.bits)
            adopt(self.model)

    def storage(self) -> Storage:
        """As the bits the run ended with."""
        return self.masking.storage()
