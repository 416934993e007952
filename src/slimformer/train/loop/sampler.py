"""The order of examples: a function of seed and epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Batches that are sorted by length together; more would make the order less random.
GROUP = 50


class EpochSampler(Sampler[int]):
    """A fresh permutation for every epoch, the same on every run with the same seed.

    Args:
        size: Number of examples.
        seed: Seed of the run.
        lengths: Length of each example; given, each stretch of `GROUP` batches is sorted by it.
        batch: Examples per optimizer step, for the grouping.
        on_epoch: Called with the number of each epoch that begins, for data that is drawn anew every time.
    """

    def __init__(
        self,
        size: int,
        seed: int,
        lengths: Sequence[int] | None = None,
        batch: int = 1,
        on_epoch: Callable[[int], None] | None = None,
    ) -> None:
        self.size = size
        self.seed = seed
        self.lengths = lengths
        self.batch = batch
        self.on_epoch = on_epoch
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = epoch
        if self.on_epoch is not None:
            self.on_epoch(epoch)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self.seed << 20) + self.epoch)
        order = torch.randperm(self.size, generator=generator).tolist()
        if self.lengths is None:
            return iter(order)
        return iter(self._grouped(order, generator))

    def _grouped(self, order: list[int], generator: torch.Generator) -> list[int]:
        lengths = self.lengths
        assert lengths is not None
        stretch = self.batch * GROUP
        batches: list[list[int]] = []
        for start in range(0, self.size, stretch):
            group = sorted(order[start : start + stretch], key=lambda index: -lengths[index])
            batches += [group[first : first + self.batch] for first in range(0, len(group), self.batch)]
        # A short batch stays at the end, where the others are cut from the same places.
        full, rest = [b for b in batches if len(b) == self.batch], [b for b in batches if len(b) < self.batch]
        shuffled = [full[index] for index in torch.randperm(len(full), generator=generator).tolist()]
        # The longest batch goes first, so that a batch too large for the memory fails at once.
        shuffled.sort(key=lambda b: lengths[b[0]] < max(map(lengths.__getitem__, order)))
        return [index for batch in [*shuffled, *rest] for index in batch]
