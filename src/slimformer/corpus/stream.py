"""Examples without end, of which each can be asked for by its number."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

from slimformer.corpus.examples import Block, Encoder, Packing
from slimformer.corpus.order.blocks import Order
from slimformer.corpus.order.memo import Memo
from slimformer.corpus.source import Outlive
from slimformer.errors import DataError
from slimformer.tasks.features import Inputs, TensorCollator, padding_collator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from slimformer.corpus.corpus import Corpus
    from slimformer.corpus.tokens.tokens import TokenSource


class Stream(ABC):
    """Examples without end: `stream[n]` for every n from 0, epoch after epoch in ever new order.

    Example n is the same whenever and wherever it is asked for. Several processes share a stream by each asking for
    its own numbers. Numbers that rise are served quickly.
    """

    def __getitem__(self, number: int) -> Inputs:
        if number < 0:
            raise IndexError(f"a stream has no end to count from, but example {number} was asked for; count from 0")
        return self._example(number)

    def __iter__(self) -> Iterator[Inputs]:
        number = 0
        while True:
            yield self[number]
            number += 1

    def first(self, count: int) -> Examples:
        """The first examples as a sequence with a length, for samplers and data loaders."""
        return Examples(self, count)

    @abstractmethod
    def epoch_size(self) -> int:
        """Examples of the first epoch."""

    def expected_epoch(self) -> int:
        """About as many, without reading everything; a run that goes on is told what it was told at its start."""
        return self.epoch_size()

    @abstractmethod
    def collator(self) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]:
        """What makes batches of the examples: a callable that pickles."""

    @abstractmethod
    def _example(self, number: int) -> Inputs:
        """The example of that number, which is not negative."""


class Examples(Sequence[Inputs]):
    """The first examples of a stream.

    They are shuffled already and meant to be read in order; a sampler that jumps about makes a stream of text
    tokenise a block for every example.

    Args:
        stream: The stream.
        count: How many; more than an epoch has is fine.
    """

    #: Tells trainers that the order is not theirs to change.
    shuffled: ClassVar[bool] = True

    def __init__(self, stream: Stream, count: int) -> None:
        if count < 0:
            raise DataError(f"`{count}` examples cannot be taken from a stream; give 0 or more")
        self.stream = stream
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Inputs: ...
    @overload
    def __getitem__(self, index: slice) -> list[Inputs]: ...
    def __getitem__(self, index: int | slice) -> Inputs | list[Inputs]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._count))]
        return self.stream[range(self._count)[index]]


class TextStream(Stream):
    """Examples `{"input_ids", "attention_mask"}` of a corpus.

    Each epoch permutes the segments of the corpus. Some of them that follow one another, about `buffer` bytes, are a
    block: its documents are tokenised, made into examples, and these permuted. `slimformer.corpus.Corpus.stream`
    describes the arguments.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokens: TokenSource,
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        *,
        seed: int,
        pack: bool,
        buffer: int,
        memo: str | Path | None,
    ) -> None:
        _check(tokenizer, length, seed, buffer)
        self.corpus = corpus
        self._collator = TensorCollator(padding_collator(tokenizer))
        self._encoder = Encoder(tokenizer)
        self._packing = Packing.of(self._encoder, length, pack)
        #: Where its tokens come from.
        self.tokens = tokens
        self._order = Order(tokens.sizes, buffer, seed)
        settings = [corpus.digest(), tokens.sizes.tolist(), self._encoder.digest(), length, seed, pack, buffer]
        self._memo = Memo(memo, hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16])
        self._on_fault = Outlive()
        self._present: tuple[int, Block, NDArray[Any]] | None = None

    def epoch_size(self) -> int:
        """Examples of the first epoch, counted by the lengths of kept tokens, or by tokenising what no memo knows.

        Other epochs have about as many: each block ends with an example that may be short, and blocks differ.
        """
        blocks = self._order.blocks
        for block in range(len(self._memo), blocks):
            lengths = self.tokens.lengths(self._order.segments(block))
            if lengths is None or (block + 1 == blocks and not self._memo.before(block)):
                self._load(block)
            else:
                self._memo.note(block, self._packing.count(lengths))
        return self._memo.before(blocks)

    def expected_epoch(self) -> int:
        """Examples of an epoch: counted where tokens are kept, else as many as the first block has for its bytes."""
        if self._memo.epoch is None:
            first, sizes = self._order.segments(0), self.tokens.sizes
            counted = self._order.blocks == 1 or self.tokens.lengths(first) is not None
            examples = 0 if counted else len(self._load(0)[0])
            estimate = round(examples * int(sizes.sum()) / int(sizes[first].sum())) if examples else self.epoch_size()
            self._memo.note_epoch(estimate)
        assert self._memo.epoch is not None
        return self._memo.epoch

    def collator(self) -> TensorCollator:
        """Pads to the longest of a batch, as the tokenizer would."""
        return self._collator

    def _example(self, number: int) -> Inputs:
        while (found := self._memo.find(number)) is None:
            self._load(len(self._memo))
        block, index = found
        examples, order = self._load(block)
        return self._packing.example(examples, int(order[index]))

    def _load(self, number: int) -> tuple[Block, NDArray[Any]]:
        """Tokenise a block, unless it is the present one."""
        if self._present is None or self._present[0] != number:
            self._present = None  # before the next one is made, so that there are never two
            segments = self._order.segments(number)
            block = self._packing.block(self.tokens.read(segments, self._on_fault))
            self.tokens.expect([self._order.segments(number + 1 + ahead) for ahead in range(self.tokens.reach)])
            self._memo.note(number, len(block))
            if number + 1 >= self._order.blocks and not self._memo.before(number + 1):
                raise DataError("the whole corpus gives no token; check the text and the tokenizer")
            self._present = number, block, self._order.examples(number, len(block))
        return self._present[1], self._present[2]


def _check(tokenizer: PreTrainedTokenizerBase, length: int, seed: int, buffer: int) -> None:
    longest = tokenizer.model_max_length
    if length > longest:
        raise DataError(
            f"length `{length}` is more than the {longest} tokens the tokenizer allows; give {longest} or less"
        )
    if seed < 0:
        raise DataError(f"seed `{seed}` is negative; give 0 or more")
    if buffer < 1:
        raise DataError(f"buffer `{buffer}` holds no text; give a number of bytes, such as {2**24}")
