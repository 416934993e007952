"""How many tokens to draft next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slimformer.sizes.decoding.draft import Draft

#: Before anything is known: the share of drafted tokens that is expected to be accepted, and as how many it counts.
PRIOR, WEIGHT = 0.9, 8.0
#: What the past counts for after another step.
MEMORY = 0.95
#: Where drafting does not pay, some tokens are still drafted every so many steps, to see whether it does by now.
PROBE, EVERY = 2, 16


class DraftLength:
    """Chooses the length that gives the most tokens for the time, by what was accepted so far.

    With an acceptance of r, k drafted tokens give (1 - r^(k+1)) / (1 - r) tokens (Leviathan et al., arXiv 2211.17192,
    equation 1), which take `verification` + k·`cost` forwards of the verifying size. Nothing is timed, so that the same
    tokens always lead to the same lengths.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._accepted, self._tried = PRIOR * WEIGHT, WEIGHT
        self._idle = 0

    def next(self) -> int:
        """Tokens to draft now; 0 where a forward of the verifying size alone is cheaper."""
        if self._draft.length is not None:
            return self._draft.length
        best = max(range(self._draft.longest + 1), key=self._speed)
        self._idle = 0 if best else self._idle + 1
        if self._idle == EVERY:
            self._idle = 0
            return min(PROBE, self._draft.longest)
        return best

    def observe(self, accepted: int, tried: int) -> None:
        """Take note of a verification.

        Args:
            accepted: Drafted tokens that were accepted, over all rows.
            tried: These and the first of each row that was not: later ones tell nothing.
        """
        self._accepted = MEMORY * self._accepted + accepted
        self._tried = MEMORY * self._tried + tried

    def _speed(self, length: int) -> float:
        rate = min(self._accepted / self._tried, 0.999)
        tokens = (1 - rate ** (length + 1)) / (1 - rate)
        return tokens / (self._draft.verification + length * self._draft.cost if length else 1)
