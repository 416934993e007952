"""A student that embeds sentences, saved so that sentence-transformers pools its outputs as it was trained to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from slimformer.anatomy import Anatomy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.methods.distill.config import Pooling

#: The steps of a sentence encoder, under the names that all versions of sentence-transformers know.
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def sentence_encoder(model: PreTrainedModel, pooling: Pooling) -> Callable[[Path], None]:
    """What writes, beside a model, how its outputs are pooled."""

    def write(stage: Path) -> None:
        (stage / "modules.json").write_text(json.dumps(MODULES, indent=2))
        (stage / "1_Pooling").mkdir()
        settings = {
            "word_embedding_dimension": Anatomy.of(model).hidden,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
        }
        (stage / "1_Pooling" / "config.json").write_text(json.dumps(settings, indent=2))

    return write
