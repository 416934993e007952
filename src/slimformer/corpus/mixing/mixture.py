"""A corpus of several, from each of which a given share of the examples comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.corpus.corpus import BUFFER, Corpus, Extent
from slimformer.corpus.mixing.turns import LEAST_SHARE, Turns
from slimformer.corpus.stream import Stream
from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from slimformer.corpus.source import OnFault
    from slimformer.tasks.features import Inputs


class Mixture(Corpus):
    """Several corpora, such as languages, each with its share of the examples, however much text it has.

    Those with little text come round more often. An epoch has as many examples as all of them have together.

    Args:
        members: The corpora.
        shares: The part of the examples that come from each; above 0, and 1 together.
    """

    def __init__(self, members: Sequence[Corpus], shares: Sequence[float]) -> None:
        super().__init__([source for member in members for source in member.sources])
        self.members = tuple(members)
        self.shares: list[float] = list(shares)

    def documents(self, on_fault: OnFault | None = None) -> Iterator[str]:
        """Every document once, member after member."""
        for member in self.members:
            yield from member.documents(on_fault)

    def first_documents(self, characters: int) -> Iterator[str]:
        """The first documents of each member, up to its share of so many characters."""
        for member, share in zip(self.members, self.shares, strict=True):
            yield from member.first_documents(max(1, round(share * characters)))

    def part(self, *, held_out: bool, one_in: int | None = None) -> Mixture:
        """The documents of each member that are learned from, or those that are held out."""
        one_in = one_in or self.held_out_one_in()
        return Mixture([member.part(held_out=held_out, one_in=one_in) for member in self.members], self.shares)

    def estimate(self, tokenizer: PreTrainedTokenizerBase) -> Extent:
        """About how much all of them hold."""
        extents = [member.estimate(tokenizer) for member in self.members]
        return Extent(sum(each.documents for each in extents), sum(each.tokens for each in extents))

    def stream(
        self,
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        *,
        seed: int = 0,
        buffer: int = BUFFER,
        workers: int | None = None,
        cache: Any = None,
        **settings: Any,
    ) -> MixedStream:
        """Examples of all members in turns; `Corpus.stream` describes the arguments.

        The members divide the bytes that are shuffled together, and without a cache the processes too.
        """
        count = len(self.members)
        settings["buffer"] = max(1, buffer // count)
        if workers is not None and cache is None:
            workers = max(1, workers // count)
        streams = [
            member.stream(tokenizer, length, seed=seed + number, workers=workers, cache=cache, **settings)
            for number, member in enumerate(self.members)
        ]
        return MixedStream(streams, self.shares, seed)


class MixedStream(Stream):
    """Examples of several streams in turns, of each as often as its share says.

    Args:
        streams: The streams.
        shares: The part of the examples that come from each; above 0, and 1 together.
        seed: What the order of their turns depends on.
    """

    def __init__(self, streams: Sequence[Stream], shares: Sequence[float], seed: int) -> None:
        self.streams = tuple(streams)
        self.turns = Turns(shares, seed)

    def epoch_size(self) -> int:
        """Examples of the first epochs of all together."""
        return sum(stream.epoch_size() for stream in self.streams)

    def expected_epoch(self) -> int:
        """About as many."""
        return sum(stream.expected_epoch() for stream in self.streams)

    def collator(self) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]:
        """What makes batches, alike for all."""
        return self.streams[0].collator()

    def _example(self, number: int) -> Inputs:
        member, index = self.turns(number)
        return self.streams[member][index]


def shares_by_weight(weights: Sequence[float]) -> list[float]:
    """Weights as parts of 1; refused are those that hardly ever take part."""
    total = sum(weights)
    shares = [weight / total for weight in weights]
    least = min(shares)
    if least < LEAST_SHARE:
        raise DataError(
            f"corpus {shares.index(least) + 1} would give {least:.1g} of the examples, too few to matter; leave it "
            "out, or give it more weight"
        )
    return shares


def shares_by_size(corpora: Sequence[Corpus], temperature: float) -> list[float]:
    """Parts by the bytes of each: to the power of 1 / temperature, as XLM-R (arXiv 1911.02116) samples languages.

    Args:
        corpora: The corpora.
        temperature: 1 for as much as there is of each; above it, what there is little of comes more often.
    """
    return shares_by_weight([corpus.size ** (1 / temperature) for corpus in corpora])
