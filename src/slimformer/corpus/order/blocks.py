"""Which segments are shuffled together, as a pure function of seed and epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
