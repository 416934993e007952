"""How processes were launched, as far as it decides who divides a model."""

from __future__ import annotations

import os

from slimformer.errors import TrainingError


def check_launch(shard: bool) -> None:
    """Refuse to have a model divided by others: what they leave of it cannot be saved here.

    Args:
        shard: Whether we are asked to divide it.
    """
    if _asked("ACCELERATE_USE_FSDP"):
        raise TrainingError(
            "`ACCELERATE_USE_FSDP` is `true`, and models that Accelerate divides cannot be saved here; launch with "
            "`--multi_gpu` and without settings of FSDP, and give `--shard`"
        )
    if shard and _asked("ACCELERATE_USE_DEEPSPEED"):
        raise TrainingError(
            "`ACCELERATE_USE_DEEPSPEED` is `true`, and `--shard` divides a model too; leave out one of both"
        )


def _asked(variable: str) -> bool:
    """Whether `accelerate launch` was told so, which it hands on like this."""
    return os.environ.get(variable, "false").lower() == "true"
