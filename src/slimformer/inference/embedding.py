"""Vectors of texts and images, as an index takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import ConfigError, DataError, describe
from slimformer.inference.runners import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.inference.pipeline import TaskPipeline
    from slimformer.inference.runners import Array


def table_of(numbers: Any, what: str) -> Array:
    """Finite numbers as an array."""
    try:
        array = np.asarray(numbers, dtype=np.float32)
    except (TypeError, ValueError):
        raise DataError(f"the {what} `{describe(numbers)}` are no table of numbers; embed texts or images") from None
    if not np.isfinite(array).all():
        raise DataError(f"the {what} hold a number that is not finite; embed the items again")
    return array


def check_pipeline(pipeline: object) -> None:
    """Refuse what is no pipeline, such as the name of a model."""
    if not hasattr(pipeline, "codec"):
        raise ConfigError(f"`{describe(pipeline)}` is no pipeline; open it with `open_pipeline`")


def embed(pipeline: TaskPipeline, requests: Sequence[Any]) -> Array:
    """The vectors of requests, [requests, width]."""
    if not pipeline.kind.embeds:
        raise ConfigError(
            f"{pipeline.kind.name} gives no vectors; open the model with the task `retrieval` or `image-retrieval`"
        )
    if not requests:
        raise DataError("there is nothing to embed; give at least one text or image")
    features = pipeline.codec.encode(requests).features
    return run(features, pipeline.codec.collate, pipeline.runner, pipeline.batch_size)["embeddings"]
