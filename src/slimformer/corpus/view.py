"""What every stream offers, and the beginning of one as a sequence with a length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

from slimformer.errors import DataError
from slimformer.tasks.features import Inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


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
