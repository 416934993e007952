"""A tokenizer as llama.cpp reads it: pieces with their types, and merges or scores.

llama.cpp does not read `tokenizer.json`: it has four ways of making tokens, and the rules by which texts are split
before merges are compiled in, known by a name. So a tokenizer is taken apart here, and one whose rules have no such
name is refused, since it would make other tokens without a word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slimformer.errors import ArtifactError
from slimformer.files import parse_json
from slimformer.integrations.gguf.splitting import (
    byte_split,
    merged_space_prefix,
    precompiled,
    space_prefix,
    squeezes,
    wordpiece_rules,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Types of a piece, as `llama_token_type` numbers them.
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
#: What stands for a blank in pieces.
BLANK = "\u2581"
#: Special tokens → what a file calls them.
_SPECIAL = {
    "unk_token_id": "unknown_token_id",
    "pad_token_id": "padding_token_id",
    "sep_token_id": "seperator_token_id",
    "cls_token_id": "cls_token_id",
    "mask_token_id": "mask_token_id",
}


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as a file holds it.

    Args:
        model: What llama.cpp calls the way of making tokens.
        pre: Name of the rules that split a text before.
        tokens: The pieces, by number.
        types: The type of each.
        scores: How good each is, where pieces are chosen by that.
        merges: Pairs, best first, where pieces are made by those.
        settings: Other settings after `tokenizer.ggml.`.
        chat: The template by which a conversation becomes a text.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    chat: str | None = None


def vocabulary_of(processor: Any, rows: int, segments: int = 0) -> Vocabulary:
    """What a tokenizer is to llama.cpp.

    Args:
        processor: A fast tokenizer of Transformers.
        rows: Rows of the model's token table; pieces that are missing are filled up with unused ones.
        segments: How many texts an encoder tells from one another; 0 for a decoder.

    Raises:
        ArtifactError: Where llama.cpp would make other tokens.
    """
    backend = getattr(processor, "backend_tokenizer", None)
    if backend is None:
        raise ArtifactError(
            f"a `{type(processor).__name__}` has no rules that can be read; give the fast version of the tokenizer"
        )
    rules: dict[str, Any] = parse_json(backend.to_str())
    maker = _MAKERS.get(_kind(rules["model"]))
    if maker is None:
        raise ArtifactError(
            f"the tokenizer is a `{_kind(rules['model'])}`, and llama.cpp has {', '.join(_MAKERS)}; export as ONNX"
        )
    pieces = _Pieces(rules, rows)
    way = maker(rules, pieces)
    tokens = pieces.tokens if way.tokens is None else way.tokens
    settings = {**way.settings, **_frame(processor), **_named(processor)}
    if segments:
        settings["token_type_count"] = segments
    chat = getattr(processor, "chat_template", None)
    chat = chat if isinstance(chat, str) else None
    return Vocabulary(way.model, way.pre, tokens, pieces.types, way.scores, way.merges, settings, chat)


@dataclass(frozen=True)
class _Way:
    """What differs from one way of making tokens to the next."""

    model: str
    pre: str = "default"
    tokens: list[str] | None = None
    scores: list[float] | None = None
    merges: list[str] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def _kind(model: dict[str, Any]) -> str:
    name = str(model.get("type"))
    return "BPE with bytes" if name == "BPE" and model.get("byte_fallback") else name


class _Pieces:
    """The pieces of a tokenizer by number, and the type of each."""

    def __init__(self, rules: dict[str, Any], rows: int) -> None:
        vocabulary = rules["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram: pairs of a piece and its score
            vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
        self.numbers: dict[str, int] = dict(vocabulary)
        added = {entry["content"]: entry for entry in rules["added_tokens"]}
        self.numbers |= {content: entry["id"] for content, entry in added.items()}
        beyond = max(self.numbers.values(), default=-1)
        if beyond >= rows:
            raise ArtifactError(
                f"the tokenizer makes tokens up to {beyond}, and the model has {rows} rows for them; give the "
                "tokenizer the model was trained with"
            )
        self.tokens = [f"[PAD{number}]" for number in range(rows)]
        self.types = [UNUSED] * rows
        unknown = rules["model"].get("unk_token")
        if unknown is None and rules["model"].get("unk_id") is not None:
            unknown = rules["model"]["vocab"][rules["model"]["unk_id"]][0]
        for piece, number in self.numbers.items():
            self.tokens[number] = piece
            self.types[number] = _type(piece, added.get(piece), unknown, rules["model"])


def _type(piece: str, entry: dict[str, Any] | None, unknown: str | None, model: dict[str, Any]) -> int:
    if piece == unknown:
        return UNKNOWN
    if entry is not None:
        return CONTROL if entry["special"] else USER
    is_byte = model.get("byte_fallback") and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
    return BYTE if is_byte else NORMAL


def _byte_level(rules: dict[str, Any], pieces: _Pieces) -> _Way:
    """Merges of bytes, as GPT-2 has them."""
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in rules["model"]["merges"]]
    return _Way("gpt2", byte_split(rules), merges=merges, settings={"add_space_prefix": False})


def _sentence_piece(rules: dict[str, Any], pieces: _Pieces) -> _Way:
    """Merges of characters with bytes for what is left, as Llama has them: llama.cpp merges by scores of pieces."""
    scores = [0.0] * len(pieces.tokens)
    for rank, pair in enumerate(rules["model"]["merges"]):
        first, second = pair.split(" ") if isinstance(pair, str) else pair
        number = pieces.numbers.get(first + second)
        if number is not None and scores[number] == 0:
            # The first pair that makes a piece is the one its merging waits for.
            scores[number] = -1.0 - rank
    return _Way("llama", scores=scores, settings={"add_space_prefix": merged_space_prefix(rules)})


def _word_piece(rules: dict[str, Any], pieces: _Pieces) -> _Way:
    """Words cut into pieces, as BERT has them; a file marks what begins a word, and `##` what does not."""
    tokens = [
        piece if kind in (CONTROL, UNKNOWN, UNUSED) else piece[2:] if piece.startswith("##") else BLANK + piece
        for piece, kind in zip(pieces.tokens, pieces.types, strict=True)
    ]
    return _Way("bert", tokens=tokens, settings=wordpiece_rules(rules))


def _unigram(rules: dict[str, Any], pieces: _Pieces) -> _Way:
    """The likeliest pieces, as T5 and XLM-RoBERTa have them."""
    scores = [0.0] * len(pieces.tokens)
    for number, (_, score) in enumerate(rules["model"]["vocab"]):
        scores[number] = float(score)
    settings: dict[str, Any] = {
        "add_space_prefix": space_prefix(rules),
        "remove_extra_whitespaces": squeezes(rules),
    }
    charsmap = precompiled(rules)
    if charsmap is not None:
        settings["precompiled_charsmap"] = charsmap
    return _Way("t5", scores=scores, settings=settings)


_MAKERS: dict[str, Callable[[dict[str, Any], _Pieces], _Way]] = {
    "BPE": _byte_level,
    "BPE with bytes": _sentence_piece,
    "WordPiece": _word_piece,
    "Unigram": _unigram,
}


def _frame(processor: Any) -> dict[str, Any]:
    """The tokens that are put before and after a text, by what the tokenizer does."""
    text = "a"
    bare = list(processor(text, add_special_tokens=False)["input_ids"])
    whole = list(processor(text)["input_ids"])
    starts = [place for place in range(len(whole) - len(bare) + 1) if whole[place : place + len(bare)] == bare]
    before, after = (whole[: starts[0]], whole[starts[0] + len(bare) :]) if starts else (whole, whole)
    if len(before) > 1 or len(after) > 1:
        raise ArtifactError(
            f"the tokenizer makes {whole} of `{text}`, and llama.cpp puts at most one token before a text and one "
            "behind it; export as ONNX"
        )
    first = before[0] if before else getattr(processor, "bos_token_id", None)
    last = after[0] if after else getattr(processor, "eos_token_id", None)
    named = {"bos_token_id": first, "eos_token_id": last}
    adds = {"add_bos_token": bool(before), "add_eos_token": bool(after)}
    return adds | {name: int(number) for name, number in named.items() if number is not None}


def _named(processor: Any) -> dict[str, int]:
    """The numbers of special tokens."""
    numbers = {name: getattr(processor, attribute, None) for attribute, name in _SPECIAL.items()}
    return {name: int(number) for name, number in numbers.items() if number is not None}
