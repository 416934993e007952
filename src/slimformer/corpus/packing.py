"""From the tokens of documents to examples of one length."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from slimformer.corpus.encoder import Encoder
    from slimformer.tasks.features import Inputs


@dataclass(frozen=True, eq=False)
class Block:
    """The examples of one shuffle block: tokens in a row, and from where to where each example reaches."""

    tokens: NDArray[np.int32]
    spans: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.spans)


@dataclass(frozen=True, eq=False)
class Packing:
    """How documents become examples.

    Args:
        opening: Special tokens before the text of an example.
        closing: Special tokens after it.
        room: Tokens of text in an example.
        separator: What is put between documents; None to make an example of each document.
    """

    opening: NDArray[np.int32]
    closing: NDArray[np.int32]
    room: int
    separator: int | None

    @classmethod
    def of(cls, encoder: Encoder, length: int, pack: bool) -> Packing:
        """The packing for a tokenizer and a length."""
        opening, closing = (np.array(ids, np.int32) for ids in (encoder.opening, encoder.closing))
        room = length - len(opening) - len(closing)
        if room < 1:
            raise DataError(
                f"length `{length}` leaves no room for text beside {len(opening) + len(closing)} special tokens; "
                "give a larger one"
            )
        if pack and encoder.separator is None:
            raise DataError(
                "the tokenizer has neither a separator nor an end token to put between documents; "
                "set its `sep_token` or `eos_token`, or make an example of each document with pack=False"
            )
        return cls(opening, closing, room, encoder.separator if pack else None)

    def block(self, parts: Iterable[tuple[list[int], bool]]) -> Block:
        """Make the examples of a block."""
        return self._single(parts) if self.separator is None else self._packed(parts, self.separator)

    def example(self, block: Block, index: int) -> Inputs:
        """One example, with its special tokens."""
        begin, end = block.spans[index]
        ids = np.concatenate([self.opening, block.tokens[begin:end], self.closing])
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    def _packed(self, parts: Iterable[tuple[list[int], bool]], separator: int) -> Block:
        tokens, separates, begin = array("i"), bytearray(), 0
        for ids, ends in parts:
            tokens.extend(ids)
            separates.extend(bytes(len(ids)))
            if ends and len(tokens) > begin:
                tokens.append(separator)
                separates.append(1)
                begin = len(tokens)
        return _block(tokens, self._cuts(separates))

    def _cuts(self, separates: bytearray) -> array[int]:
        """Spans of `room` tokens, the last one shorter.

        A separator at the beginning of an example would part nothing, and at its end it would stand before a
        closing token that says the same; both are left out. The end token of a decoder, which has no closing
        token, stays.
        """
        spans, begin = array("q"), 0
        while begin < len(separates):
            begin += separates[begin]
            end = min(begin + self.room, len(separates))
            if begin < end:
                spans.extend((begin, end - separates[end - 1] if len(self.closing) else end))
            begin = end
        return spans

    def _single(self, parts: Iterable[tuple[list[int], bool]]) -> Block:
        tokens, spans, begin = array("i"), array("q"), 0
        for ids, ends in parts:
            tokens.extend(ids[: self.room - (len(tokens) - begin)])
            if ends and len(tokens) > begin:
                spans.extend((begin, len(tokens)))
                begin = len(tokens)
        return _block(tokens, spans)


def _block(tokens: array[int], spans: array[int]) -> Block:
    if not tokens:
        return Block(np.empty(0, np.int32), np.empty((0, 2), np.int64))
    return Block(np.frombuffer(tokens, np.int32), np.frombuffer(spans, np.int64).reshape(-1, 2))
