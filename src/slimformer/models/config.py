"""The config of a model, and what can be told from it alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slimformer.errors import CheckpointError
from slimformer.models.names import first_sentence, listed_aliases, resolve

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def load_config(name: str | Path) -> PretrainedConfig:
    """Load the Transformers config of a checkpoint; every failure becomes a `CheckpointError`."""
    from transformers import AutoConfig

    source = resolve(name)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(source)
    except Exception as error:
        if Path(source).is_dir():
            raise CheckpointError(
                f"config.json of `{name}` does not describe a model Transformers knows: {first_sentence(error)}; "
                "check `model_type` and the installed transformers version"
            ) from error
        raise CheckpointError(
            f"`{name}` is no folder here and could not be fetched from the Hub; "
            f"check the spelling and the network, or give a folder or one of: {listed_aliases()}"
        ) from error
    return config


def positions(config: PretrainedConfig) -> int | None:
    """Tokens a model takes at most; None for images and where there is no limit."""
    from slimformer.anatomy import family_of, known

    count: int | None = getattr(config, "max_position_embeddings", None)
    if count is None or config.model_type not in known() or not family_of(config.model_type).positions_after_padding:
        return count
    return count - 1 - (getattr(config, "pad_token_id", None) or 0)


def sees_images(config: PretrainedConfig) -> bool:
    """Whether a model takes images instead of text."""
    from slimformer.anatomy import family_of, known

    if config.model_type in known():
        return family_of(config.model_type).word_embedding is None
    return hasattr(config, "patch_size")


def is_causal(config: PretrainedConfig) -> bool:
    """Whether a token of a model sees only what stands before it."""
    from slimformer.anatomy import family_of

    return family_of(config.model_type).causal
