"""How teacher and student make one vector of a text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slimformer.models.sentence import SentenceSettings

if TYPE_CHECKING:
    from slimformer.methods.distill.config import DistillConfig


def sentence_settings(config: DistillConfig) -> SentenceSettings:
    """How teacher and student pool: as told, or as is recorded with the teacher; the rest is always the teacher's."""
    assert config.teacher is not None
    recorded = SentenceSettings.of(config.teacher) or SentenceSettings()
    for term in config.learned:
        pooling = str(term.values[0] if term.values else term.options.get("pooling", ""))
        if term.name == "pooled" and pooling:
            return replace(recorded, pooling=tuple(pooling.split("+")))
    return recorded
