"""How an artifact reads inputs and names outputs, recorded beside the probe: the probe asks the model alone.

A changed tokenizer gives other answers just as a changed weight does. So its vocabulary, what it makes of some texts
and of its own pieces, how an image processor prepares an image, how sentences are pooled and how labels are called are
recorded at saving from what was read back, and compared when the artifact is loaded.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from slimformer.artifact.layout import READING
from slimformer.artifact.manifest import Record, Sha256
from slimformer.artifact.probe import ProbeOutput, difference, noise, sampled
from slimformer.errors import ArtifactError, CheckpointError
from slimformer.models import quiet

if TYPE_CHECKING:
    from pathlib import Path

#: Words, case, accents, numbers, other scripts, white space and a word that is in no vocabulary.
TEXTS = (
    "A fine film, isn't it? Naïve RÉSUMÉS cost $12,345.67 (or less)…",
    "The quick brown fox  jumps\tover\nthe lazy dog — and 北京 Привет 🙂!",
    "unbelievablylongwordthatnobodyhaseverwritten http://example.org/?q=1#top",
)
#: Pieces of a vocabulary that are read back as text, spread over all of it.
PIECES = 4096
#: Height and width of the image that is prepared.
IMAGE = (40, 56)
#: How far prepared pixels may lie apart: two ways of resizing differ by a level or two of 255.
PIXELS = 2e-2
SPECIAL = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


class Reading(Record):
    """What `read` found: digests by aspect, and samples of a prepared image."""

    digests: dict[str, Sha256] = Field(default_factory=dict)
    image: ProbeOutput | None = None


def read(folder: Path, labels: Any, processor: Any) -> Reading:
    """Look at how a folder reads inputs and names outputs.

    Args:
        folder: The artifact.
        labels: `id2label` of its model's config.
        processor: Its tokenizer or image processor, or that of its base; None for none.
    """
    from slimformer.models.sentence import SentenceSettings

    try:
        sentence = SentenceSettings.read(folder)
        aspects: dict[str, Any] = {"labels": {str(number): label for number, label in (labels or {}).items()}}
        aspects["sentence settings"] = None if sentence is None else asdict(sentence)
        tokenizer = getattr(processor, "tokenizer", processor)
        with quiet():
            if hasattr(tokenizer, "get_vocab"):
                aspects |= _of_tokenizer(tokenizer)
            image = None if processor is None or hasattr(processor, "get_vocab") else _prepared(processor)
        return Reading(digests={name: _digest(value) for name, value in aspects.items()}, image=image)
    except (ArtifactError, CheckpointError) as error:
        raise ArtifactError(str(error)) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ArtifactError(
            f"the tokenizer or image processor of `{folder}` does not work: {reason}; copy the artifact again"
        ) from error


def compare(folder: Path, now: Reading) -> None:
    """Refuse an artifact that reads inputs or names outputs in another way than it has recorded."""
    try:
        recorded = Reading.model_validate_json((folder / READING).read_bytes())
    except ValidationError as error:
        reason = error.errors()[0]["msg"].lower()
        raise ArtifactError(f"`{folder / READING}` cannot be read: {reason}; copy the artifact again") from error
    for aspect, digest in recorded.digests.items():
        if now.digests.get(aspect) != digest:
            raise ArtifactError(
                f"the {aspect} of artifact `{folder}` are not those recorded at saving; its tokenizer, config or the "
                "transformers version are not those of the saving"
            )
    if recorded.image is not None:
        pixels = {} if now.image is None else {"pixels": now.image}
        difference({"pixels": recorded.image}, pixels, relative=0, absolute=PIXELS)


def _of_tokenizer(tokenizer: Any) -> dict[str, Any]:
    vocabulary = tokenizer.get_vocab()
    pieces = sorted(vocabulary)
    spread = [pieces[place] for place in range(0, len(pieces), -(-len(pieces) // PIECES) or 1)]
    cut = tokenizer(TEXTS[0], TEXTS[1], truncation=True, max_length=8)
    padded = {}
    if tokenizer.pad_token_id is not None:
        padded = tokenizer(list(TEXTS), padding=True)
    return {
        "vocabulary": sorted(vocabulary.items()),
        "special tokens": [getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL],
        "texts": [dict(tokenizer(text)) for text in TEXTS],
        "pieces": tokenizer([tokenizer.convert_tokens_to_string([piece]) for piece in spread])["input_ids"],
        "cut and padded texts": [dict(cut), dict(padded), min(int(tokenizer.model_max_length), 10**9)],
    }


def _prepared(processor: Any) -> ProbeOutput:
    height, width = IMAGE
    image = ((noise(height * width * 3) + 1) * 127.5).round().byte().view(height, width, 3).numpy()
    return sampled("pixels", processor(images=image, return_tensors="pt")["pixel_values"])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=list)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
