"""The order of a stream: which segments are shuffled together, as a pure function of seed and epoch."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np

from slimformer.corpus.examples import Block, Encoder, Packing
from slimformer.corpus.source import Outlive
from slimformer.errors import DataError
from slimformer.files import parse_json
from slimformer.tasks.features import Inputs, TensorCollator, padding_collator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from slimformer.corpus.corpus import Corpus
    from slimformer.corpus.tokens.tokens import TokenSource


class Order:
    """Segments permuted for every epoch and divided into blocks of about `buffer` bytes.

    Blocks are counted through all epochs, and every epoch has equally many, so that the number of a block tells its
    epoch.

    Args:
        sizes: Bytes of each segment.
        buffer: Bytes of a block, give or take a segment.
        seed: What the order depends on.
    """

    def __init__(self, sizes: NDArray[np.int64], buffer: int, seed: int) -> None:
        self._sizes = sizes
        self._buffer = buffer
        self._seed = seed
        #: Blocks of an epoch.
        self.blocks = int(-(-sizes.sum() // buffer))
        self._epoch = -1
        self._segments: NDArray[np.int64] = np.empty(0, np.int64)
        self._block_of: NDArray[np.int64] = np.empty(0, np.int64)

    def segments(self, block: int) -> list[int]:
        """The segments of a block, in the order they are read."""
        epoch, number = divmod(block, self.blocks)
        if epoch != self._epoch:
            self._segments = np.random.default_rng([self._seed, epoch]).permutation(len(self._sizes))
            sizes = self._sizes[self._segments]
            self._block_of = (np.cumsum(sizes) - sizes) // self._buffer
            self._epoch = epoch
        first, last = np.searchsorted(self._block_of, [number, number + 1])
        return [int(segment) for segment in self._segments[first:last]]

    def examples(self, block: int, count: int) -> NDArray[Any]:
        """The order of a block's examples."""
        epoch, number = divmod(block, self.blocks)
        return np.random.default_rng([self._seed, epoch, number]).permutation(count)


class Memo:
    """Counts of the first blocks of a stream, in memory and in a file that survives a kill.

    The file is only ever appended to, a whole line at a time, and every line says what it belongs to: a torn line, a
    line that another process wrote too and the lines of other settings do no harm.

    Args:
        path: The file; None to keep the counts in memory only.
        key: What the counts depend on; lines with another key are ignored.
    """

    def __init__(self, path: str | Path | None, key: str) -> None:
        self._path = None if path is None else Path(path)
        # Every process counts the same; one on each machine is enough to write it down.
        self._writes = os.environ.get("LOCAL_RANK", "0") == "0"
        self._key = key
        self._ends: list[int] = []  # examples up to the end of each block
        self._torn = False
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def __len__(self) -> int:
        return len(self._ends)

    def find(self, example: int) -> tuple[int, int] | None:
        """The block of an example and its number within; None when it lies beyond the blocks known."""
        block = bisect_right(self._ends, example)
        return None if block == len(self._ends) else (block, example - self.before(block))

    def before(self, block: int) -> int:
        """Examples in all blocks before one."""
        return self._ends[block - 1] if block else 0

    def note(self, block: int, examples: int) -> None:
        """Remember the count of the next block, or make sure that a known one is still right."""
        if block < len(self._ends):
            known = self._ends[block] - self.before(block)
            if known != examples:
                raise DataError(
                    f"block {block} of the corpus has {examples} examples now and had {known} before, so its files "
                    "were changed while they were in use; start anew"
                )
            return
        self._ends.append(self.before(block) + examples)
        if self._path is not None and self._writes:
            self._write(self._path, {"stream": self._key, "block": block, "examples": examples})

    def _write(self, path: Path, line: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(line) + "\n"
        with path.open("a") as file:
            file.write(f"\n{text}" if self._torn else text)
        self._torn = False

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        self._torn = bool(content) and not content.endswith(b"\n")
        counts: dict[int, int] = {}
        for line in content.split(b"\n"):
            try:
                values = parse_json(line)
                if values["stream"] == self._key:
                    counts[int(values["block"])] = int(values["examples"])
            except (ValueError, TypeError, KeyError):
                continue
        while len(self._ends) in counts:
            self._ends.append(self.before(len(self._ends)) + counts[len(self._ends)])


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
