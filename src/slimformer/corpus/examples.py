"""Documents to token numbers, in batches, with the fast core of a tokenizer."""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import DataError
from slimformer.files import parse_json
from slimformer.models.processors.backend import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from slimformer.corpus.tokens.tokens import Tokens
    from slimformer.tasks.features import Inputs

#: Characters that are tokenised in one call; more would only take more memory, about 80 bytes for each.
BATCH = 2**18


class Encoder:
    """A tokenizer's core, apart from the tokenizer.

    A tokenizer keeps the padding and truncation of its last call; a copy of the core has neither, whoever else uses
    the tokenizer, and does not spend time on masks and offsets that nobody reads.

    Args:
        tokenizer: A fast tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from tokenizers import Tokenizer

        if not getattr(tokenizer, "is_fast", False):
            raise DataError(
                f"`{type(tokenizer).__name__}` is not a fast tokenizer, which a corpus needs; "
                "use a checkpoint with tokenizer.json"
            )
        original: Any = tokenizer.backend_tokenizer
        self._core: Any = Tokenizer.from_str(original.to_str())
        self._core.no_padding()
        self._core.no_truncation()
        self._core.encode_special_tokens = original.encode_special_tokens
        separators = (tokenizer.sep_token_id, tokenizer.eos_token_id)
        #: What stands between two documents: the separator of an encoder, the end token of a decoder.
        self.separator: int | None = next((each for each in separators if isinstance(each, int)), None)
        self.opening, self.closing = self._around(next(iter(tokenizer.all_special_tokens), "a"))

    @property
    def vocabulary(self) -> int:
        """How many token numbers there are."""
        return 1 + max(self._core.get_vocab(with_added_tokens=True).values(), default=0)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_core": (self._core.to_str(), self._core.encode_special_tokens)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        content, special = state["_core"]
        core: Any = Tokenizer.from_str(content)
        core.encode_special_tokens = special
        self.__dict__.update(state, _core=core)

    def encode(self, documents: Iterable[str]) -> Iterator[tuple[list[int], bool]]:
        """Token numbers without special tokens, and whether a document ends with them.

        A document of more than `BATCH` characters comes in several parts, cut at blanks.
        """
        for texts, ends in _batches(documents):
            encodings = encode_batch(self._core, texts, offsets=False)
            yield from ((encoding.ids, last) for encoding, last in zip(encodings, ends, strict=True))

    def words(self, documents: Iterable[str]) -> Iterator[list[int]]:
        """Token numbers of one word after the other, as the tokenizer itself cuts a text before it splits words."""
        for texts, _ in _batches(documents):
            for encoding in encode_batch(self._core, texts):
                for _, word in groupby(zip(encoding.word_ids, encoding.ids, strict=True), key=itemgetter(0)):
                    yield [token_id for _, token_id in word]

    def digest(self) -> str:
        """A hash of everything that decides which tokens a text becomes."""
        state = (parse_json(self._core.to_str(), halves=True), self._core.encode_special_tokens, self.separator)
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    def _around(self, probe: str) -> tuple[list[int], list[int]]:
        """The special tokens the tokenizer's own post-processor puts before and after a text."""
        encoding = self._core.encode(probe)
        inside = [index for index, sequence in enumerate(encoding.sequence_ids) if sequence is not None]
        return encoding.ids[: inside[0]], encoding.ids[inside[-1] + 1 :]


def _batches(documents: Iterable[str]) -> Iterator[tuple[list[str], list[bool]]]:
    """Texts to be tokenised in one call, and which of them end a document."""
    texts: list[str] = []
    ends: list[bool] = []
    size = 0
    for document in documents:
        for text, last in _parts(document):
            texts.append(text)
            ends.append(last)
            size += len(text)
            if size >= BATCH:
                yield texts, ends
                texts, ends, size = [], [], 0
    yield texts, ends


def _parts(document: str) -> Iterator[tuple[str, bool]]:
    """A document in parts of at most `BATCH` characters, and which part is the last."""
    start = 0
    while len(document) - start > BATCH:
        blank = document.rfind(" ", start + 1, start + BATCH)
        stop = blank if blank > 0 else start + BATCH
        yield document[start:stop], False
        start = stop
    yield document[start:], True


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

    def block(self, tokens: Tokens) -> Block:
        """Make the examples of a block."""
        return self._single(tokens) if self.separator is None else self._packed(tokens, self.separator)

    def count(self, lengths: NDArray[np.int64]) -> int:
        """How many examples documents of so many tokens make."""
        return len(lengths) if self.separator is None else len(self._cuts(_separators(lengths).tobytes()))

    def example(self, block: Block, index: int) -> Inputs:
        """One example, with its special tokens."""
        begin, end = block.spans[index]
        ids = np.concatenate([self.opening, block.tokens[begin:end], self.closing])
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    def _packed(self, tokens: Tokens, separator: int) -> Block:
        separates = _separators(tokens.lengths)
        ids = np.full(len(separates), separator, np.int32)
        ids[~separates] = tokens.ids
        return Block(ids, self._cuts(separates.tobytes()))

    def _cuts(self, separates: bytes) -> NDArray[np.int64]:
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
        return np.array(spans, np.int64).reshape(-1, 2)

    def _single(self, tokens: Tokens) -> Block:
        ends = np.cumsum(tokens.lengths)
        begins = ends - tokens.lengths
        return Block(tokens.ids, np.stack([begins, np.minimum(ends, begins + self.room)], axis=1))


def _separators(lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where one stands after each document, in a row of their tokens and separators."""
    ends = np.cumsum(lengths + 1)
    separates = np.zeros(int(ends[-1]) if len(ends) else 0, np.bool_)
    separates[ends - 1] = True
    return separates
