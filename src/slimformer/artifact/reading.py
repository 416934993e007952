"""How an artifact reads inputs and names outputs, recorded beside the probe: the probe asks the model alone.

A changed tokenizer gives other answers just as a changed weight does. So its vocabulary, what it makes of some texts
and of its own pieces, how an image processor prepares an image, how sentences are pooled, how labels are called, where
generated text ends and what the task is are recorded at saving from what was read back, and compared when the artifact
is loaded. Of what a tokenizer gives, only that counts which changes an answer, so that another version of it may give
more or less besides.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from slimformer.artifact.layout import CONFIG, READING
from slimformer.artifact.manifest import Record, Sha256
from slimformer.artifact.opening.configs import read_config
from slimformer.artifact.probe import ProbeOutput, difference, noise, sampled
from slimformer.errors import ArtifactError, CheckpointError
from slimformer.models import quiet
from slimformer.models.weights import GENERATION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transformers import PretrainedConfig

    from slimformer.artifact.manifest import TaskRecord

    #: Outputs of a tokenizer for single texts, and for texts that are cut or padded.
    Encoded = tuple[list[dict[str, Any]], list[dict[str, Any]]]

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
#: How far prepared pixels may lie apart, of the largest: two ways of resizing differ by a level or two of 255.
PIXELS = 2e-2
#: What the first records did not have: they had all that a tokenizer gives, as `texts` and `cut and padded texts`.
LATER = ("task settings", "generation settings", "number types", "tokens of texts", "tokens of cut and padded texts")
#: Settings of a config that say where generated text begins and ends.
ENDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
SPECIAL = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


class Reading(Record):
    """Digests by aspect, and samples of a prepared image."""

    digests: dict[str, Sha256] = Field(default_factory=dict)
    image: ProbeOutput | None = None


def read(folder: Path, config: PretrainedConfig, processor: Any, task: TaskRecord | None) -> Reading:
    """Look at how a folder reads inputs and names outputs.

    Args:
        folder: The artifact.
        config: The config of its model.
        processor: Its tokenizer or image processor, or that of its base; None for none.
        task: What it was made for.
    """
    from slimformer.models.sentence import SentenceSettings

    with _refusing(folder):
        sentence = SentenceSettings.read(folder)
        aspects: dict[str, Any] = {
            "labels": {str(number): label for number, label in (config.id2label or {}).items()},
            "sentence settings": None if sentence is None else asdict(sentence),
            "task settings": None if task is None else task.model_dump(mode="json", exclude_defaults=True),
            "generation settings": _generation(folder),
            "number types": read_config(folder / CONFIG).get("dtype"),
        }
        tokenizer = _tokenizer(processor)
        if tokenizer is not None:
            aspects |= _of_tokenizer(tokenizer, typed=_typed(config))
        image = None if processor is None or hasattr(processor, "get_vocab") else _prepared(processor)
        return Reading(digests={name: _digest(value) for name, value in aspects.items()}, image=image)


def check(folder: Path, config: PretrainedConfig, processor: Any, task: TaskRecord | None) -> None:
    """Refuse an artifact that reads inputs or names outputs in another way than it has recorded.

    Args:
        folder: The artifact; one of an earlier version, which recorded nothing, is taken as it is.
        config: The config of its model.
        processor: Its tokenizer or image processor, or that of its base; None for none.
        task: What it was made for.
    """
    if not (folder / READING).is_file():
        return
    try:
        recorded = Reading.model_validate_json((folder / READING).read_bytes())
    except ValidationError as error:
        reason = error.errors()[0]["msg"].lower()
        raise ArtifactError(f"`{folder / READING}` cannot be read: {reason}; copy the artifact again") from error
    now = read(folder, config, processor, task)
    accepted = {name: {digest} for name, digest in now.digests.items()}
    if recorded.digests.keys().isdisjoint(LATER):
        with _refusing(folder):
            accepted = {name: digests for name, digests in accepted.items() if name not in LATER}
            accepted |= _recorded_earlier(_tokenizer(processor), typed=_typed(config))
    for aspect in sorted(accepted.keys() - recorded.digests.keys()):
        raise ArtifactError(f"`{READING}` of artifact `{folder}` says nothing of the {aspect}; copy the artifact again")
    for aspect, digest in recorded.digests.items():
        if digest not in accepted.get(aspect, ()):
            raise ArtifactError(
                f"the {aspect} of artifact `{folder}` are not those recorded at saving; its tokenizer, config or the "
                "transformers version are not those of the saving"
            )
    if recorded.image is not None:
        pixels = {} if now.image is None else {"pixels": now.image}
        difference({"pixels": recorded.image}, pixels, relative=PIXELS, absolute=0)


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Whatever fails inside is the fault of the artifact."""
    try:
        with quiet():
            yield
    except (ArtifactError, CheckpointError) as error:
        raise ArtifactError(str(error)) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ArtifactError(
            f"the tokenizer or image processor of `{folder}` does not work: {reason}; copy the artifact again"
        ) from error


def _tokenizer(processor: Any) -> Any:
    tokenizer = getattr(processor, "tokenizer", processor)
    return tokenizer if hasattr(tokenizer, "get_vocab") else None


def _typed(config: PretrainedConfig) -> bool:
    """Whether a model tells sorts of token apart, such as the texts of a pair."""
    return (getattr(config, "type_vocab_size", None) or 0) > 1


def _generation(folder: Path) -> dict[str, Any]:
    """The files that say how text is generated, but for the version that wrote them."""
    config, path = read_config(folder / CONFIG), folder / GENERATION
    own = read_config(path) if path.is_file() else {}
    own.pop("transformers_version", None)
    return {"own": own, **{name: config.get(name) for name in ENDS}}


def _of_tokenizer(tokenizer: Any, *, typed: bool) -> dict[str, Any]:
    vocabulary = tokenizer.get_vocab()
    pieces = sorted(vocabulary)
    spread = [pieces[place] for place in range(0, len(pieces), -(-len(pieces) // PIECES) or 1)]
    texts, cut_and_padded = _encoded(tokenizer)
    return {
        "vocabulary": sorted(vocabulary.items()),
        "special tokens": [getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL],
        "pieces": tokenizer([tokenizer.convert_tokens_to_string([piece]) for piece in spread])["input_ids"],
        "tokens of texts": [_canonical(each, types=typed) for each in texts],
        "tokens of cut and padded texts": [
            *(_canonical(each, types=typed) for each in cut_and_padded),
            _longest(tokenizer),
        ],
    }


def _recorded_earlier(tokenizer: Any, *, typed: bool) -> dict[str, set[str]]:
    """What the digests of texts may be that covered all a tokenizer gave, which was with or without types of tokens."""
    if tokenizer is None:
        return {}
    encoded = _encoded(tokenizer)
    # Types that a model does not tell apart may have been there or not, whatever they were.
    forms = [encoded, _in_form(encoded, types=True)]
    if not typed:
        forms += [_in_form(encoded, types=False), _encoded(tokenizer, return_token_type_ids=True)]
    return {
        "texts": {_digest(texts) for texts, _ in forms},
        "cut and padded texts": {_digest([*cut_and_padded, _longest(tokenizer)]) for _, cut_and_padded in forms},
    }


def _in_form(encoded: Encoded, *, types: bool) -> Encoded:
    texts, cut_and_padded = ([_canonical(each, types=types) for each in part] for part in encoded)
    return texts, cut_and_padded


def _encoded(tokenizer: Any, **outputs: bool) -> Encoded:
    """What a tokenizer makes of texts as they are, and of texts that are cut or padded, where it can pad."""
    cut = tokenizer(TEXTS[0], TEXTS[1], truncation=True, max_length=8, **outputs)
    padded = {} if tokenizer.pad_token_id is None else tokenizer(list(TEXTS), padding=True, **outputs)
    return [dict(tokenizer(text, **outputs)) for text in TEXTS], [dict(cut), dict(padded)]


def _canonical(encoded: dict[str, Any], *, types: bool) -> dict[str, Any]:
    """Of what a tokenizer gives, that which a model takes; what is left out, as the model takes it then."""
    if not encoded:
        return {}
    ids = encoded["input_ids"]
    kept = {"input_ids": ids, "attention_mask": encoded.get("attention_mask", _like(ids, 1))}
    return {**kept, "token_type_ids": encoded.get("token_type_ids", _like(ids, 0))} if types else kept


def _like(ids: Any, value: int) -> Any:
    return [_like(each, value) for each in ids] if isinstance(ids, list) else value


def _longest(tokenizer: Any) -> int:
    return min(int(tokenizer.model_max_length), 10**9)


def _prepared(processor: Any) -> ProbeOutput:
    height, width = IMAGE
    image = ((noise(height * width * 3) + 1) * 127.5).round().byte().view(height, width, 3).numpy()
    return sampled("pixels", processor(images=image, return_tensors="pt")["pixel_values"])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=list)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
