"""Texts of like length side by side, so that a batch is padded by little, as a pure function of an example's number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.corpus.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slimformer.tasks.features import Inputs

#: Batches that are sorted by length together, and examples at most, all of which are held in memory.
BATCHES, MOST = 50, 8192


class GroupedStream(Stream):
    """Examples of another stream in another order: batches of texts of like length, in random order.

    Numbers are divided into stretches of whole batches. The examples of a stretch are sorted by length and cut into
    batches, and these shuffled, so that every example stays within its stretch.

    Args:
        stream: The stream.
        batch: Examples of an optimizer step.
        seed: What the order of the batches depends on.
    """

    def __init__(self, stream: Stream, batch: int, seed: int) -> None:
        self.stream = stream
        self._batch = batch
        self._length = batch * max(1, min(BATCHES, MOST // batch))
        self._seed = seed
        self._present: tuple[int, list[Inputs]] | None = None

    def epoch_size(self) -> int:
        """Examples of the first epoch."""
        return self.stream.epoch_size()

    def expected_epoch(self) -> int:
        """About as many."""
        return self.stream.expected_epoch()

    def collator(self) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]:
        """What makes batches, as without groups."""
        return self.stream.collator()

    def _example(self, number: int) -> Inputs:
        stretch, place = divmod(number, self._length)
        if self._present is None or self._present[0] != stretch:
            self._present = stretch, self._grouped(stretch)
        return self._present[1][place]

    def _grouped(self, stretch: int) -> list[Inputs]:
        first = stretch * self._length
        examples = [self.stream[number] for number in range(first, first + self._length)]
        by_length = np.argsort([len(example["input_ids"]) for example in examples], kind="stable")
        shuffled = np.random.default_rng([self._seed, stretch]).permutation(by_length.reshape(-1, self._batch))
        return [examples[index] for index in shuffled.ravel()]
