"""The pieces of a tokenizer: what each is built from, and a smaller vocabulary that splits covered text the same.

Text is *covered* by a set of pieces if the tokenizer splits it into pieces of this set alone. Each class below says
which other pieces a kept piece needs (`parts`) and why covered text is then split by the smaller vocabulary as before.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from slimformer.errors import CheckpointError
from slimformer.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

#: Characters that are kept wherever the vocabulary has them, so that any ASCII text can be written.
ASCII = tuple(map(chr, range(33, 127)))


class Vocabulary:
    """The model of a fast tokenizer as data.

    `open_vocabulary` makes one of the right class.

    Args:
        state: The content of tokenizer.json.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.model: dict[str, Any] = state["model"]
        #: Piece → id, of the model's own pieces; added tokens may stand beside them.
        self.ids: dict[str, int] = self._ids()
        #: Id → piece.
        self.pieces = {piece_id: name for name, piece_id in self.ids.items()}

    def required(self) -> set[int]:
        """Ids of the pieces that stay whatever the corpus says: special and added tokens, bytes, ASCII."""
        added = {token["id"] for token in self.state["added_tokens"]}
        padding = {self.state["padding"]["pad_id"]} if self.state["padding"] else set()
        named = [f"<0x{byte:02X}>" for byte in range(256)] if self.model.get("byte_fallback") else []
        named += [symbol for character in ASCII for symbol in self._forms(character)]
        if self._of_bytes():
            named += _byte_alphabet()
        if self.model.get("unk_token") is not None:
            named.append(self.model["unk_token"])
        return added | padding | self._known(named) | set(_processor_ids(self.state["post_processor"]))

    def symbols(self, piece: str) -> list[str]:
        """The smallest pieces that a piece falls into."""
        return list(piece)

    def characters(self, piece_id: int) -> set[int]:
        """Ids of the smallest pieces that a piece falls into."""
        return self._known(self.symbols(self.pieces[piece_id])) if piece_id in self.pieces else set()

    def parts(self, piece_id: int) -> set[int]:
        """Ids of the pieces that stay with this one: its characters, so that each can also be written otherwise."""
        return self.characters(piece_id)

    def cut(self, new_ids: Mapping[int, int]) -> dict[str, Any]:
        """The content of tokenizer.json with some pieces only.

        Args:
            new_ids: Old id → new id of the pieces that stay.
        """
        state = dict(self.state)
        state["model"] = {**self.model, **self._cut_model(new_ids)}
        state["added_tokens"] = [
            {**token, "id": new_ids[token["id"]]} for token in self.state["added_tokens"] if token["id"] in new_ids
        ]
        state["post_processor"] = _renumber_processor(self.state["post_processor"], new_ids)
        if self.state["padding"]:
            state["padding"] = {**self.state["padding"], "pad_id": new_ids[self.state["padding"]["pad_id"]]}
        return state

    def _ids(self) -> dict[str, int]:
        return dict(self.model["vocab"])

    def _cut_model(self, new_ids: Mapping[int, int]) -> dict[str, Any]:
        ordered = sorted((piece_id, name) for name, piece_id in self.ids.items() if piece_id in new_ids)
        return {"vocab": {name: new_ids[piece_id] for piece_id, name in ordered}}

    def _forms(self, character: str) -> Iterable[str]:
        """The pieces that one character may be."""
        return (character,)

    def _known(self, pieces: Iterable[str]) -> set[int]:
        return {self.ids[piece] for piece in pieces if piece in self.ids}

    def _of_bytes(self) -> bool:
        """Whether characters stand for bytes, as in GPT-2."""
        return '"ByteLevel"' in json.dumps([self.state["pre_tokenizer"], self.state["normalizer"]])


class WordLevel(Vocabulary):
    """A word is a piece or unknown, so that any subset splits covered text the same."""

    def symbols(self, piece: str) -> list[str]:
        """None: a word has no parts."""
        return []


class WordPiece(Vocabulary):
    """Greedy longest match, as in BERT.

    Where the whole vocabulary finds a kept piece, it is the longest match; among fewer pieces it is the longest still,
    so that the next match begins at the same place. A word becomes unknown where a character has no piece of its own
    at its place, as the start or as a continuation. If every piece's characters are pieces (true of vocabularies that
    were trained), no piece at all then covers the character there, and the word is unknown to any subset.
    """

    def symbols(self, piece: str) -> list[str]:
        """Characters: the first as a start unless the piece is a continuation, the others as continuations."""
        prefix = self.model["continuing_subword_prefix"]
        start = piece.removeprefix(prefix)
        inner = [prefix + character for character in start]
        return inner if start != piece or not piece else [piece[0], *inner[1:]]

    def _forms(self, character: str) -> Iterable[str]:
        return (character, self.model["continuing_subword_prefix"] + character)


class BPE(Vocabulary):
    """Merges in the order of their ranks, over characters (Llama) or bytes (GPT-2).

    A token that ends up in a text was merged from what lies inside it alone, the lowest rank first: as if it had stood
    by itself. So the merges of a covered text are those of its pieces by themselves. `parts` are the products of these
    merges, even those that no text ever ends up with. Merges stay in order, and those of kept pieces all stay; hence
    the merge of the lowest rank at each step of a covered text is the same as before, and at the end none is left.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__(state)
        self.prefix: str = self.model["continuing_subword_prefix"] or ""
        self.suffix: str = self.model["end_of_word_suffix"] or ""
        #: Pair → rank; of a pair that is there twice the last counts, as in tokenizers.
        self.ranks = {_pair(merge): rank for rank, merge in enumerate(self.model["merges"])}

    def symbols(self, piece: str) -> list[str]:
        """Characters, with the marks of a continuation and of a word's end where the model uses such."""
        inside = self.prefix and piece.startswith(self.prefix)
        text = piece.removeprefix(self.prefix) if inside else piece
        end = self.suffix if len(text) > len(self.suffix) and text.endswith(self.suffix) else ""
        characters = list(text.removesuffix(end) if end else text)
        marked = [self.prefix + character for character in characters]
        if characters and not inside:
            marked[0] = characters[0]
        return [*marked[:-1], marked[-1] + end] if marked else []

    def parts(self, piece_id: int) -> set[int]:
        """Everything that is merged on the way to the piece, its characters included."""
        if piece_id not in self.pieces:
            return set()
        symbols = self.symbols(self.pieces[piece_id])
        built = set(symbols)
        while (at := self._next_merge(symbols)) is not None:
            symbols[at : at + 2] = [self._join(*symbols[at : at + 2])]
            built.add(symbols[at])
        return self._known(built)

    def _next_merge(self, symbols: list[str]) -> int | None:
        """Where the pair with the lowest rank begins, the first of several."""
        ranked = ((self.ranks.get(pair), at) for at, pair in enumerate(pairwise(symbols)))
        best = min(((rank, at) for rank, at in ranked if rank is not None), default=None)
        return None if best is None else best[1]

    def _join(self, left: str, right: str) -> str:
        return left + right.removeprefix(self.prefix)

    def _cut_model(self, new_ids: Mapping[int, int]) -> dict[str, Any]:
        def stays(merge: Any) -> bool:
            left, right = _pair(merge)
            return all(self.ids[piece] in new_ids for piece in (left, right, self._join(left, right)))

        return {**super()._cut_model(new_ids), "merges": [merge for merge in self.model["merges"] if stays(merge)]}


class Unigram(Vocabulary):
    """The path of the highest score (XLM-R, ALBERT).

    Scores stay, so among fewer paths the best one, if it stays, is the best; and of several that are equal the first,
    since each of its ends keeps its score and no other end gains. An unknown character scores 10 less than the lowest
    piece, and stands where a character is no piece. The lowest piece is kept, so that an unknown character is as bad as
    it was; and a character that is unknown now scores less than it did as a piece, so that no path gains from it.
    """

    def required(self) -> set[int]:
        """As for all, the unknown piece, and the piece with the lowest score."""
        unknown = set() if self.model["unk_id"] is None else {int(self.model["unk_id"])}
        scores = [score for _, score in self.model["vocab"]]
        return super().required() | unknown | {scores.index(min(scores))}

    def _ids(self) -> dict[str, int]:
        return {name: piece_id for piece_id, (name, _) in enumerate(self.model["vocab"])}

    def _cut_model(self, new_ids: Mapping[int, int]) -> dict[str, Any]:
        unknown = self.model["unk_id"]
        return {
            "vocab": [entry for piece_id, entry in enumerate(self.model["vocab"]) if piece_id in new_ids],
            "unk_id": None if unknown is None else new_ids[unknown],
        }


#: Name in tokenizer.json → class.
MODELS: dict[str, type[Vocabulary]] = {
    "WordLevel": WordLevel,
    "WordPiece": WordPiece,
    "BPE": BPE,
    "Unigram": Unigram,
}


def open_vocabulary(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a fast tokenizer; others are refused.

    Args:
        tokenizer: A tokenizer of Transformers.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(
            f"`{type(tokenizer).__name__}` is not a fast tokenizer, so its pieces cannot be taken apart; "
            "use a checkpoint with tokenizer.json"
        )
    state = parse_json(tokenizer.backend_tokenizer.to_str(), halves=True)
    kind = state["model"]["type"]
    if kind not in MODELS:
        raise CheckpointError(
            f"the tokenizer's model is `{kind}`, which cannot be trimmed; those that can: {', '.join(sorted(MODELS))}"
        )
    return MODELS[kind](state)


def close_pieces(vocabulary: Vocabulary, ids: Collection[int]) -> set[int]:
    """Add what these pieces are built from."""
    return set(ids).union(*map(vocabulary.parts, ids))


def _pair(merge: Any) -> tuple[str, str]:
    """A merge, which older files write as one text."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _byte_alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel.alphabet()


def _processor_ids(processor: Any) -> Iterator[int]:
    """Ids of the special tokens that a post-processor adds."""
    if not processor:
        return
    for inner in processor.get("processors", ()):
        yield from _processor_ids(inner)
    for token in (processor.get("special_tokens") or {}).values():
        yield from token["ids"]
    for name in ("sep", "cls"):
        if name in processor:
            yield processor[name][1]


def _renumber_processor(processor: Any, new_ids: Mapping[int, int]) -> Any:
    if not processor:
        return processor
    changed = dict(processor)
    if "processors" in processor:
        changed["processors"] = [_renumber_processor(inner, new_ids) for inner in processor["processors"]]
    if processor.get("special_tokens"):
        changed["special_tokens"] = {
            name: {**token, "ids": [new_ids[piece_id] for piece_id in token["ids"]]}
            for name, token in processor["special_tokens"].items()
        }
    for name in ("sep", "cls"):
        if name in processor:
            token, piece_id = processor[name]
            changed[name] = [token, new_ids[piece_id]]
    return changed
