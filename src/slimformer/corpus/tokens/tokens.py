"""Tokens of documents in a row."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slimformer.corpus.corpus import Corpus
    from slimformer.corpus.examples import Encoder
    from slimformer.corpus.source import OnFault


@dataclass(frozen=True, eq=False)
class Tokens:
    """Documents as token numbers, without special tokens; those that have none are left out.

    Args:
        ids: The tokens of all documents, one after the other.
        lengths: Tokens of each document.
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Iterable[tuple[list[int], bool]]) -> Tokens:
        """What an encoder gives: parts of documents, and which of them are the last of theirs."""
        ids, lengths, begin = array("i"), array("q"), 0
        for part, ends in parts:
            ids.extend(part)
            if ends and len(ids) > begin:
                lengths.append(len(ids) - begin)
                begin = len(ids)
        return cls(np.array(ids, np.int32), np.array(lengths, np.int64))

    @classmethod
    def joined(cls, several: Iterator[Tokens]) -> Tokens:
        """One row of them after the other."""
        rows = [*several] or [cls(np.empty(0, np.int32), np.empty(0, np.int64))]
        return cls(np.concatenate([row.ids for row in rows]), np.concatenate([row.lengths for row in rows]))


class TokenSource(Protocol):
    """Where a stream has its tokens from."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of text of each segment."""

    @property
    def reach(self) -> int:
        """How many blocks it wants to know of before they are read."""

    def read(self, segments: Sequence[int], on_fault: OnFault) -> Tokens:
        """The tokens of some segments, one after the other."""

    def expect(self, blocks: Sequence[Sequence[int]]) -> None:
        """Take note of the segments that will be read next."""

    def lengths(self, segments: Sequence[int]) -> NDArray[np.int64] | None:
        """Tokens of each document of some segments; None where they are not known without making them."""


class UnpreparedTokens:
    """Tokens that nothing is done for before they are read."""

    @property
    def reach(self) -> int:
        """It wants to know of none."""
        return 0

    def expect(self, blocks: Sequence[Sequence[int]]) -> None:
        """Do nothing."""

    def lengths(self, segments: Sequence[int]) -> NDArray[np.int64] | None:
        """None are known."""
        return None


@dataclass(frozen=True, eq=False)
class LiveTokens(UnpreparedTokens):
    """Tokens made whenever they are asked for.

    Args:
        corpus: The text.
        encoder: What makes tokens of it.
    """

    corpus: Corpus
    encoder: Encoder

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of text of each segment."""
        return self.corpus.sizes

    def read(self, segments: Sequence[int], on_fault: OnFault) -> Tokens:
        """The tokens of some segments, one after the other."""
        documents = (document for each in segments for document in self.corpus.read(each, on_fault))
        return Tokens.of(self.encoder.encode(documents))
