"""What the compiled part of a tokenizer may do wrong: panic, which no `except Exception` sees, and grow a text.

Its files come from strangers. A regular expression in them can run into the engine's limit on some text, a template can
name a token that it does not define, and a chain of replacements can turn one letter into gigabytes, at which the
process would be aborted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.errors import CheckpointError, DataError, describe
from slimformer.models.names import first_sentence
from slimformer.models.weights import read_config
from slimformer.panics import panics_raised

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tokenizers import Encoding, Tokenizer

#: Characters that replacements may make of one; those of real tokenizers make one to four.
MOST_GROWTH = 1_000
#: What of a tokenizer rewrites text.
REWRITERS = ("normalizer", "decoder")


def encode_batch(
    backend: Tokenizer, texts: Sequence[Any], *, split: bool = False, offsets: bool = True
) -> list[Encoding]:
    """Encode texts without special tokens; one that the tokenizer fails at is an error of ours.

    Args:
        backend: The compiled part of a tokenizer.
        texts: Texts, or lists of words.
        split: Whether they are lists of words.
        offsets: Whether the places of tokens in their texts are needed; it is slower.
    """
    encode = backend.encode_batch if offsets else backend.encode_batch_fast
    try:
        with panics_raised():
            return list(encode(list(texts), is_pretokenized=split, add_special_tokens=False))
    except ValueError as error:
        raise DataError(
            f"the tokenizer fails at one of the texts: {first_sentence(error)}; take its files from where the model "
            "was made, or leave the text out"
        ) from error


def check_backend(folder: Path, name: str) -> None:
    """Refuse a tokenizer that would panic at any text, or make a long one of a letter; it is not loaded for that."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return
    state = read_config(path)
    _check_growth(state, name)
    # Before it is used: the engine writes a traceback of its own to the terminal when it panics.
    undefined = next(_undefined_tokens(state.get("post_processor")), None)
    if undefined is not None:
        raise CheckpointError(
            f"the post_processor in tokenizer.json of `{name}` adds `{describe(undefined)}`, which is not among its "
            "special tokens; take the tokenizer's files from where the model was made"
        )


def _check_growth(state: dict[str, Any], name: str) -> None:
    for part in REWRITERS:
        growth = _growth(state.get(part))
        if growth > MOST_GROWTH:
            raise CheckpointError(
                f"the {part} in tokenizer.json of `{name}` makes up to {growth:.0e} characters of one; take the "
                "tokenizer's files from where the model was made"
            )


def _growth(step: Any) -> float:
    """How many characters a step makes of one at most."""
    if isinstance(step, list):
        growth = 1.0
        for each in step:
            growth = min(growth * _growth(each), 1e300)
        return growth
    if not isinstance(step, dict):
        return 1.0
    if step.get("type") == "Replace" and isinstance(step.get("content"), str):
        return max(1.0, float(len(step["content"])))
    return _growth([value for value in step.values() if isinstance(value, list)])


def _undefined_tokens(processor: Any) -> Iterator[str]:
    """Special tokens that templates add and do not define; parts of another form are left to the engine to refuse."""
    if not isinstance(processor, dict):
        return
    for inner in _list(processor.get("processors")):
        yield from _undefined_tokens(inner)
    defined = processor.get("special_tokens")
    if processor.get("type") != "TemplateProcessing" or not isinstance(defined, dict):
        return
    for piece in [*_list(processor.get("single")), *_list(processor.get("pair"))]:
        token = piece.get("SpecialToken") if isinstance(piece, dict) else None
        name = token.get("id") if isinstance(token, dict) else None
        if isinstance(name, str) and name not in defined:
            yield name


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
