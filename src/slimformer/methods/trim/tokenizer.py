"""A tokenizer with some of its pieces only."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slimformer.corpus.encoder import Encoder
from slimformer.errors import ConfigError
from slimformer.methods.trim.vocabulary import close_pieces, open_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from slimformer.methods.trim.vocabulary import Vocabulary

T = TypeVar("T", bound="PreTrainedTokenizerBase")


def trim_tokenizer(tokenizer: T, numbers: Sequence[int]) -> T:
    """A tokenizer of the same class whose pieces are these alone, numbered from 0 in the old order.

    Text that the old tokenizer splits into these pieces is split the same; other text falls into smaller pieces, or is
    unknown. Special tokens, templates, padding and truncation stay.

    Args:
        tokenizer: A fast tokenizer; it is left as it is.
        numbers: Of `choose_pieces`.
    """
    vocabulary = open_vocabulary(tokenizer)
    kept = sorted(set(numbers))
    _check_whole(tokenizer, vocabulary, kept)
    renumbered = {old: new for new, old in enumerate(kept)}
    state = vocabulary.cut(renumbered)
    with tempfile.TemporaryDirectory() as folder:
        # Written and read again, because the classes of Transformers keep copies of their vocabulary.
        tokenizer.save_pretrained(folder)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
        trimmed: T = type(tokenizer).from_pretrained(folder)
    trimmed.name_or_path = tokenizer.name_or_path
    _check_same(tokenizer, trimmed, renumbered)
    return trimmed


def _check_whole(tokenizer: Any, vocabulary: Vocabulary, kept: list[int]) -> None:
    """Refuse a choice of pieces that a tokenizer cannot be made of."""
    known = set(tokenizer.get_vocab().values())
    strange = [number for number in kept if number not in known]
    if strange:
        raise ConfigError(f"there is no piece {strange[0]} in the tokenizer of {len(known)} pieces; count again")
    missing = sorted(close_pieces(vocabulary, {*vocabulary.required(), *tokenizer.all_special_ids, *kept}) - set(kept))
    if missing:
        raise ConfigError(
            f"`{tokenizer.convert_ids_to_tokens(missing[0])}` and {len(missing) - 1} other pieces are missing that the "
            "kept ones are built from or that always stay; take what `choose_pieces` returns"
        )


def _check_same(tokenizer: Any, trimmed: Any, renumbered: dict[int, int]) -> None:
    """Refuse a tokenizer whose class numbers pieces or special tokens in a way of its own."""
    expected = {name: renumbered[number] for name, number in tokenizer.get_vocab().items() if number in renumbered}
    around = [renumbered[number] for number in _around(tokenizer)]
    same_special = tokenizer.special_tokens_map == trimmed.special_tokens_map
    if trimmed.get_vocab() != expected or _around(trimmed) != around or not same_special:
        raise ConfigError(
            f"`{type(tokenizer).__name__}` does not load with fewer pieces as it is: it numbers its tokens in a way of "
            "its own; load the tokenizer as PreTrainedTokenizerFast and trim that"
        )


def _around(tokenizer: Any) -> list[int]:
    """Special tokens around a text, asked of a copy: a call would change padding and truncation."""
    encoder = Encoder(tokenizer)
    return [*encoder.opening, *encoder.closing]
