"""A student that embeds sentences, saved so that whoever opens it pools its outputs as it was trained to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slimformer.anatomy import Anatomy
from slimformer.models.sentence import SentenceSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.methods.distill.config import DistillConfig


def sentence_settings(config: DistillConfig) -> SentenceSettings:
    """How teacher and student pool: as told, or as is recorded with the teacher; the rest is always the teacher's."""
    if config.pooled is None:
        return SentenceSettings()
    assert config.teacher is not None
    recorded = SentenceSettings.of(config.teacher) or SentenceSettings()
    return recorded if config.pooled == "recorded" else replace(recorded, pooling=(config.pooled,))


def sentence_encoder(model: PreTrainedModel, settings: SentenceSettings) -> Callable[[Path], None]:
    """What writes, beside a model, how its outputs are pooled."""
    width = Anatomy.of(model).hidden
    return lambda stage: settings.write(stage, width)
