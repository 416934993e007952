"""Text as an endless stream of examples, of which one shuffle block is in memory."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from slimformer.corpus.encoder import Encoder
from slimformer.corpus.faults import Outlive
from slimformer.corpus.memo import Memo
from slimformer.corpus.order import Order
from slimformer.corpus.packing import Block, Packing
from slimformer.corpus.view import Stream
from slimformer.errors import DataError
from slimformer.tasks.collators import TensorCollator, padding_collator

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from slimformer.corpus.corpus import Corpus
    from slimformer.tasks.features import Inputs


class TextStream(Stream):
    """Examples `{"input_ids", "attention_mask"}` of a corpus.

    Each epoch permutes the segments of the corpus. Some of them that follow one another, about `buffer` bytes, are a
    block: its documents are tokenised, made into examples, and these permuted. `slimformer.corpus.Corpus.stream`
    describes the arguments.
    """

    def __init__(
        self,
        corpus: Corpus,
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
        self._order = Order(corpus.sizes, buffer, seed)
        settings = [corpus.digest(), corpus.sizes.tolist(), self._encoder.digest(), length, seed, pack, buffer]
        self._memo = Memo(memo, hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16])
        self._on_fault = Outlive()
        self._present: tuple[int, Block, NDArray[Any]] | None = None

    def epoch_size(self) -> int:
        """Examples of the first epoch, counted by tokenising what the memo does not know.

        Other epochs have about as many: each block ends with an example that may be short, and blocks differ.
        """
        blocks = self._order.blocks
        for block in range(len(self._memo), blocks):
            self._load(block)
        return self._memo.before(blocks)

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
            documents = (document for each in segments for document in self.corpus.read(each, self._on_fault))
            block = self._packing.block(self._encoder.encode(documents))
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
