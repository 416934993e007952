"""A corpus of text: sources cut into segments, of which only the sizes are in memory."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slimformer.corpus.examples import Encoder
from slimformer.corpus.source import Outlive, SequentialSource, refuse
from slimformer.errors import DataError
from slimformer.files import as_path
from slimformer.tasks.splits import Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from slimformer.corpus.source import OnFault, Source
    from slimformer.corpus.stream import Stream
    from slimformer.corpus.tokens.building import Progress
    from slimformer.corpus.tokens.tokens import TokenSource

#: Bytes of text that are shuffled together.
BUFFER = 2**24
#: One document in so many is held out of a corpus, and of one with fewer bytes than that.
HELD_OUT, SMALL_HELD_OUT, SMALL = 100, 10, 2**22


#: Bytes of text that an estimate looks at.
SAMPLE = 2**18


class Extent(NamedTuple):
    """How much a corpus holds."""

    documents: float
    tokens: float


class Corpus:
    """Text that may be far larger than the memory.

    `slimformer.corpus.open_corpus` makes one and checks it.

    Args:
        sources: The files and tables it consists of.
    """

    #: The part of the examples that comes from each of several; None for one corpus.
    shares: list[float] | None = None

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """About how many bytes of text each segment holds; what is read forwards is read through to know."""
        return np.array([size for each in self._sizes for size in each], np.int64)

    @cached_property
    def size(self) -> int:
        """About how many bytes of text there are; of a compressed or streamed source it is an estimate."""
        return sum(source.total() for source in self.sources)

    @cached_property
    def _sizes(self) -> list[Sequence[int]]:
        return [source.sizes() for source in self.sources]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """How many segments there are up to the end of each source."""
        return np.cumsum([len(each) for each in self._sizes])

    def read(self, segment: int, on_fault: OnFault) -> Iterator[str]:
        """The documents of one segment.

        Args:
            segment: Which one, counted through all sources.
            on_fault: Told of records that cannot be read.
        """
        number = int(np.searchsorted(self._ends, segment, side="right"))
        first = int(self._ends[number - 1]) if number else 0
        return filter(self.holds, self.sources[number].read(segment - first, on_fault))

    def holds(self, document: str) -> bool:
        """Whether a document of the files belongs to the corpus."""
        return True

    def selection(self) -> str:
        """Which documents of the files belong to the corpus, in words that tell one choice from another."""
        return "all"

    def documents(self, on_fault: OnFault | None = None) -> Iterator[str]:
        """Every document, in the order of the files; records that cannot be read are left out and logged."""
        on_fault = on_fault or Outlive()
        for source in self.sources:
            for documents in source.scan(on_fault):
                yield from filter(self.holds, documents)

    def check(self) -> None:
        """Read everything and refuse the first thing that is wrong, naming file and line.

        Opening a corpus does this for the first segment of every file only; what is wrong later is left out by
        a stream, with a warning.
        """
        for _ in self.documents(refuse):
            pass

    def check_seekable(self) -> None:
        """Refuse what is read forwards, which a stream can only read where its tokens are kept."""
        for source in self.sources:
            if isinstance(source, SequentialSource):
                raise DataError(
                    f"`{source.name}` {source.reason} and cannot be read from the middle, so its tokens have to be "
                    f"kept; give a folder with `--token-cache`, or {source.instead}"
                )

    def first_documents(self, characters: int) -> Iterator[str]:
        """The first documents, up to so many characters."""
        size = 0
        for document in self.documents():
            if size >= characters:
                return
            yield document
            size += len(document)

    def first(self, characters: int) -> Split:
        """The first documents, up to so many characters, as examples of language modelling."""
        documents = enumerate(self.first_documents(characters), 1)
        examples = [{"text": document, "document": str(number)} for number, document in documents]
        return Split(examples, [("corpus", number) for number in range(1, len(examples) + 1)])

    def held_out_one_in(self) -> int:
        """Of how many documents one is held out."""
        return HELD_OUT if self.size >= SMALL else SMALL_HELD_OUT

    def part(self, *, held_out: bool, one_in: int | None = None) -> Corpus:
        """The documents that are learned from, or those that are held out.

        Args:
            held_out: Which part.
            one_in: Of how many documents one is held out; by default as the size of the corpus says.
        """
        return Part(self, held_out=held_out, one_in=one_in or self.held_out_one_in())

    def estimate(self, tokenizer: PreTrainedTokenizerBase) -> Extent:
        """About how much it holds, by its first documents; exact where these are all.

        Args:
            tokenizer: A fast tokenizer.
        """
        sample: list[str] = []
        size = 0
        share = 1.0
        for document in self.documents():
            if size >= SAMPLE:
                share = min(1.0, size / max(self.size, 1))
                break
            sample.append(document)
            size += len(document.encode()) + 1  # the end of its line
        tokens = sum(len(ids) for ids, _ in Encoder(tokenizer).encode(sample))
        return Extent(len(sample) / share, tokens / share)

    def digest(self) -> str:
        """A hash that changes when the files do: of their names, sizes and both ends of each."""
        summed = hashlib.sha256()
        for source in self.sources:
            for part in source.identity():
                summed.update(len(part).to_bytes(8, "big") + part)
        return summed.hexdigest()

    def stream(
        self,
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        *,
        seed: int = 0,
        pack: bool = True,
        buffer: int = BUFFER,
        memo: str | Path | None = None,
        cache: str | Path | None = None,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> Stream:
        """Examples of tokens, shuffled anew each epoch, without end.

        Args:
            tokenizer: A fast tokenizer.
            length: Tokens of an example, special tokens included.
            seed: What the order depends on.
            pack: Whether to put documents one after another, with separators, and cut them to `length`; otherwise
                every document is an example, and what is beyond `length` is left out.
            buffer: Bytes of text that are shuffled together and held in memory.
            memo: A small file in which the stream notes how far its blocks reach, to find its place after a kill.
            cache: A folder in which the tokens are kept, once made, for later epochs and runs; compressed files and
                data sets of the Hub need one.
            workers: Processes that make tokens beside this one; by default as many as there are cores for a cache, and
                none without: given there, they make the blocks that come next, each a whole one.
            progress: Told how far a cache is: bytes of text that are done, and of about how many.
        """
        from slimformer.corpus.stream import TextStream
        from slimformer.corpus.tokens.ahead import TokensAhead
        from slimformer.corpus.tokens.building import open_tokens
        from slimformer.corpus.tokens.tokens import LiveTokens

        encoder = Encoder(tokenizer)
        tokens: TokenSource = LiveTokens(self, encoder)
        if cache is not None:
            tokens = open_tokens(self, encoder, as_path(cache), workers, progress)
        else:
            self.check_seekable()
            if workers is not None:
                tokens = TokensAhead(LiveTokens(self, encoder), workers)
        return TextStream(self, tokens, tokenizer, length, seed=seed, pack=pack, buffer=buffer, memo=memo)


class Part(Corpus):
    """The documents of a corpus that are learned from, or those that are held out.

    Which they are follows from their text alone, so that a copy of a document in another file goes with it.

    Args:
        corpus: The corpus.
        held_out: Which part.
        one_in: Of how many documents one is held out.
    """

    def __init__(self, corpus: Corpus, *, held_out: bool, one_in: int) -> None:
        super().__init__(corpus.sources)
        self.held_out = held_out
        self._one_in = one_in

    def holds(self, document: str) -> bool:
        """Whether a document belongs to the part."""
        number = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big")
        return (number % self._one_in == 0) == self.held_out

    def selection(self) -> str:
        """Which documents of the files belong to the part, in words that tell one choice from another."""
        return f"{'held out' if self.held_out else 'learned from'} of {self._one_in}"
