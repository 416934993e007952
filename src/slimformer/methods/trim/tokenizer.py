"""A tokenizer with some of its pieces only."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slimformer.errors import ConfigError
from slimformer.files import parse_json
from slimformer.methods.trim.vocabulary import close_pieces, open_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from slimformer.methods.trim.vocabulary import Vocabulary

T = TypeVar("T", bound="PreTrainedTokenizerBase")


def trim_tokenizer(tokenizer: T, ids: Sequence[int]) -> T:
    """A tokenizer of the same class whose pieces are these alone, numbered from 0 in the old order.

    Text that the old tokenizer splits into these pieces is split the same; other text falls into smaller pieces, or is
    unknown. Special tokens, templates, padding and truncation stay.

    Args:
        tokenizer: A fast tokenizer; it is left as it is.
        ids: Of `choose_pieces`.
    """
    vocabulary = open_vocabulary(tokenizer)
    kept = sorted(set(ids))
    _check_whole(tokenizer, vocabulary, kept)
    new_ids = {old: new for new, old in enumerate(kept)}
    state = vocabulary.cut(new_ids)
    return reload_tokenizer(tokenizer, state)


def reload_tokenizer(tokenizer: T, state: dict[str, Any]) -> T:
    """A tokenizer of the same class with another tokenizer.json.

    Args:
        tokenizer: A fast tokenizer; it is left as it is.
        state: The content of tokenizer.json.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Written and read again, because the classes of Transformers keep copies of their vocabulary.
        tokenizer.save_pretrained(folder)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
        loaded: T = type(tokenizer).from_pretrained(folder)
    loaded.name_or_path = tokenizer.name_or_path
    _check_loaded(loaded, state)
    return loaded


def _check_whole(tokenizer: Any, vocabulary: Vocabulary, kept: list[int]) -> None:
    """Refuse a choice of pieces that no tokenizer can consist of."""
    known = set(tokenizer.get_vocab().values())
    strange = [piece_id for piece_id in kept if piece_id not in known]
    if strange:
        raise ConfigError(f"there is no piece {strange[0]} in the tokenizer of {len(known)} pieces; count again")
    missing = sorted(close_pieces(vocabulary, {*vocabulary.required(), *tokenizer.all_special_ids, *kept}) - set(kept))
    if missing:
        raise ConfigError(
            f"`{tokenizer.convert_ids_to_tokens(missing[0])}` and {len(missing) - 1} other pieces are missing that the "
            "kept ones are built from or that always stay; take what `choose_pieces` returns"
        )


def _check_loaded(tokenizer: Any, state: dict[str, Any]) -> None:
    """Refuse a tokenizer whose class makes something else of its tokenizer.json."""
    loaded = parse_json(tokenizer.backend_tokenizer.to_str(), halves=True)
    differing = sorted(part for part in state if loaded[part] != state[part])
    if differing:
        raise ConfigError(
            f"`{type(tokenizer).__name__}` does not load with other pieces: its class changes `{differing[0]}` of "
            "tokenizer.json; load the tokenizer as PreTrainedTokenizerFast and give that"
        )
