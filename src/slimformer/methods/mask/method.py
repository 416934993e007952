"""Masking a base for a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.methods.manner import configure
from slimformer.methods.mask.config import MaskConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slimformer.artifact import MaskStorage
    from slimformer.methods.mask.scores import Masking
    from slimformer.methods.task_run import TaskResult
    from slimformer.train import Objective


def mask(config: MaskConfig | None = None, **settings: Any) -> TaskResult:
    """Learn which weights of a base to keep for a task.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `MaskConfig` and of `Manner` (resume, overwrite, quiet, command).

    Example:
        >>> result = mask(model="minilm", task="classification", data="reviews", out="sentiment")
        >>> (result.folder / "mask.safetensors").stat().st_size
    """
    from slimformer.artifact.storage.mask_base import fingerprint_of
    from slimformer.methods.mask.scores import Masking
    from slimformer.methods.task_run import run_on_task

    config, manner = configure(MaskConfig, config, settings)
    config.require("model")
    assert config.model is not None
    if config.out is not None:
        fingerprint_of(config.model)  # a base that could not be told from another is refused before any work
    running: list[Masking] = []

    def prepare(model: PreTrainedModel) -> Objective | None:
        running.append(Masking.start(model, config))
        return running[0].objective()

    def finish(model: PreTrainedModel) -> None:
        running[0].end(model)

    def storage() -> MaskStorage:
        return running[0].storage()

    return run_on_task(
        "mask",
        config,
        config,
        manner,
        base=config.model,
        out=config.out,
        prepare=prepare,
        finish=finish,
        storage=storage,
    )
