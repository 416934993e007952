"""What has to be known of a tokenizer to give it new pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slimformer.methods.extend.choosing import NewPiece
    from slimformer.methods.trim.vocabulary import Vocabulary

    #: The pieces of a word or of a stretch of it.
    Tokens = tuple[str, ...]


class Splitting(ABC):
    """The splits of a corpus's words under a vocabulary that grows.

    Args:
        vocabulary: Of `open_vocabulary`.
    """

    #: Tokens that a new piece is joined from at most.
    longest = 8
    #: Whether it matters which tokens a piece is joined from, and not its text alone.
    by_parts = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.old = frozenset(vocabulary.ids)
        self.new: dict[str, Tokens] = {}
        added = {token["content"] for token in vocabulary.state["added_tokens"]}
        unknown = {vocabulary.model.get("unk_token"), vocabulary.pieces.get(vocabulary.model.get("unk_id", -1))}
        #: Pieces that nothing is joined from.
        self.fixed = added | (unknown - {None})

    def stretches(self, word: Tokens) -> Iterator[Tokens]:
        """What of a word new pieces may be joined from."""
        if not any(token in self.fixed or token not in self.old for token in word):
            yield word

    @abstractmethod
    def join(self, run: Tokens) -> str:
        """The piece that some tokens in a row would make."""

    @abstractmethod
    def prepare(self, words: Sequence[Tokens]) -> None:
        """Note the words that will be split anew."""

    @abstractmethod
    def touched(self, piece: str) -> list[int] | None:
        """Which words a piece may change; None for those that hold the tokens it is joined from."""

    @abstractmethod
    def split(self, word: Tokens, piece: str, run: Tokens) -> Tokens | None:
        """A word with a piece that has just been added; None where it becomes unknown."""

    @abstractmethod
    def extend(self, pieces: Sequence[NewPiece]) -> dict[str, Any]:
        """What of the model in tokenizer.json changes with new pieces."""

    @abstractmethod
    def parts(self, piece: str, run: Tokens) -> Tokens | None:
        """The old pieces that a new one stands for; None where they cannot spell it by themselves."""

    def add(self, piece: str, parts: Tokens) -> None:
        """Let words be split with a new piece."""
        self.new[piece] = parts

    def remove(self, piece: str) -> None:
        """Take back what was added."""
        del self.new[piece]

    def _numbered(self, pieces: Sequence[NewPiece]) -> dict[str, int]:
        """The vocabulary with new pieces.

        Added tokens that were numbered behind the model's pieces become such, because they would be numbered anew.
        """
        added = {token["content"]: token["id"] for token in self.vocabulary.state["added_tokens"]}
        numbered = {**self.vocabulary.ids, **added, **{piece.text: piece.id for piece in pieces}}
        return dict(sorted(numbered.items(), key=lambda item: item[1]))
