"""Which tokenizer or image processor it is: a sum over what decides the inputs of a model."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from slimformer.models.weights import read_config

if TYPE_CHECKING:
    from pathlib import Path

#: Files that decide what a model reads, and the parts of each that do; None for all. Tried in order.
IDENTITIES: tuple[tuple[str, tuple[str, ...] | None], ...] = (
    ("tokenizer.json", ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")),
    ("preprocessor_config.json", None),
    ("processor_config.json", None),
)


def processor_sum(folder: Path) -> str | None:
    """The SHA-256 of what decides how the files of a folder turn texts into tokens, or images into pixels.

    Of a tokenizer these are the parts of tokenizer.json that make tokens, as JSON with sorted keys and no blanks:
    how the last caller had texts cut and padded does not count, nor how the file is indented. None where the folder
    has no such file.
    """
    for name, parts in IDENTITIES:
        if (folder / name).is_file():
            content = read_config(folder / name)
            kept = content if parts is None else {part: content.get(part) for part in parts}
            text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            return hashlib.sha256(text.encode()).hexdigest()
    return None
