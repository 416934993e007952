"""Whose turn it is in a mixture, as a pure function of an example's number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Examples within which each member has its share, to one example, where no share is tiny.
STRETCH = 1024
#: The smallest share that a member may have; below it there would be none in millions of examples.
LEAST_SHARE = 1e-6


class Turns:
    """Which member gives example n, and which of that member's own examples it is.

    Numbers are divided into stretches. How many examples a member gives to the first k stretches is its share of them,
    rounded so that all together are right; within a stretch the members are shuffled.

    Args:
        shares: The part of each member; above 0, and 1 together.
        seed: What the order within a stretch depends on.
    """

    def __init__(self, shares: Sequence[float], seed: int) -> None:
        # Of a member that has two examples or more in each stretch, rounding takes none that were given before.
        self._length = max(STRETCH, int(np.ceil(2 / min(shares))))
        self._ends = np.cumsum(shares)
        self._ends[-1] = 1.0
        self._seed = seed
        self._present: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    def __call__(self, number: int) -> tuple[int, int]:
        """Member and the number of its own example."""
        stretch, place = divmod(number, self._length)
        before, members = self._stretch(stretch)
        member = int(members[place])
        return member, int(before[member] + np.count_nonzero(members[:place] == member))

    def counts(self, count: int) -> NDArray[np.int64]:
        """How many of the first examples each member gives, where a stretch ends."""
        ends: NDArray[np.int64] = np.floor(count * self._ends).astype(np.int64)
        return np.diff(ends, prepend=0)

    def _stretch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What each member gave before a stretch, and the members in the order of their turns."""
        if self._present is None or self._present[0] != number:
            before, after = (self.counts(end * self._length) for end in (number, number + 1))
            members = np.repeat(np.arange(len(self._ends)), after - before)
            self._present = number, before, np.random.default_rng([self._seed, number]).permutation(members)
        return self._present[1], self._present[2]
