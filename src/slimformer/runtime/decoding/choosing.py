"""Which token comes next: the likeliest, or one drawn from what is left of the distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slimformer.counts import check_count
from slimformer.errors import ConfigError, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.runtime.onnx import Array


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn.

    Args:
        temperature: Logits are divided by it.
        top_k: How many of the likeliest tokens may come; None for all.
        top_p: The likeliest tokens that together have this probability may come (arXiv 1904.09751); 1 for all.
        seed: Of the numbers; each sequence has its own from the same seed, so that what stands beside it changes
            nothing.
    """

    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not 0 < self.temperature < np.inf:
            raise ConfigError(f"`temperature` is `{describe(self.temperature)}`; give a number above 0")
        if self.top_k is not None:
            check_count("top-k", self.top_k)
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ConfigError(f"`top_p` is `{describe(self.top_p)}`; give a number above 0, and 1 at most")
        if type(self.seed) is not int or self.seed < 0:
            raise ConfigError(f"`seed` is `{describe(self.seed)}`; give a whole number, 0 or more")

    def chooser(self) -> Chooser:
        """What chooses the tokens of one sequence."""
        return Chooser(self)

    def probabilities(self, logits: Array) -> Array:
        """What is left of a distribution, float64, of the logits of one token."""
        scores = logits.astype(np.float64) / self.temperature
        order = np.argsort(-scores, kind="stable")[: self.top_k]
        shares = np.exp(scores[order] - scores[order[0]])
        shares /= shares.sum()
        # Those before which less than `top_p` is reached; so there is always one.
        kept = order[: 1 + int(np.searchsorted(np.cumsum(shares)[:-1], self.top_p))]
        left = np.zeros_like(scores)
        left[kept] = shares[: len(kept)] / shares[: len(kept)].sum()
        return left


class Chooser:
    """Chooses the tokens of one sequence.

    Args:
        sampling: How they are drawn; None for the likeliest, the first of equals.
    """

    def __init__(self, sampling: Sampling | None) -> None:
        self.sampling = sampling
        self._draw = np.random.default_rng(0 if sampling is None else sampling.seed)

    def choose(self, logits: Array) -> int:
        """A token by its logits."""
        if self.sampling is None:
            return int(np.argmax(logits))
        return self._drawn(self.sampling.probabilities(logits))

    def propose(self, logits: Array, ids: Array | None = None, vocabulary: int = 0) -> tuple[int, Array | None]:
        """A token by the logits of a draft, and what it was drawn from, float64; None where none is drawn.

        Args:
            logits: Of all tokens, or of those of a shortlist.
            ids: The tokens of the shortlist, rising.
            vocabulary: Tokens that there are, where there is a shortlist.
        """
        if self.sampling is None:
            best = int(np.argmax(logits))
            return (best if ids is None else int(ids[best])), None
        proposed = self.sampling.probabilities(logits)
        if ids is not None:
            short, proposed = proposed, np.zeros(vocabulary)
            proposed[ids] = short
        return self._drawn(proposed), proposed

    def verify(self, drafted: Sequence[int], proposed: Sequence[Array | None], logits: Array) -> tuple[int, int]:
        """How many drafted tokens stay, and the token that follows them.

        The likeliest tokens stay up to the first that is none. Where tokens are drawn, x stays with probability
        min(1, p(x) / q(x)); after the first that does not, one is drawn from the normalized max(0, p - q), and after
        the last of all from p (Leviathan et al., arXiv 2211.17192, algorithm 1): all are distributed as p is.

        Args:
            drafted: The tokens.
            proposed: What each was drawn from, q.
            logits: Of the verifying size, [drafted + 1, vocabulary], from which p comes.
        """
        if self.sampling is None:
            best = np.argmax(logits, axis=-1)
            agrees = best[:-1] == np.asarray(drafted, best.dtype)
            accepted = len(drafted) if agrees.all() else int(np.argmin(agrees))
            return accepted, int(best[accepted])
        for accepted, (token, q) in enumerate(zip(drafted, proposed, strict=True)):
            p = self.sampling.probabilities(logits[accepted])
            if q is not None and self._draw.random() * q[token] >= p[token]:
                residual = np.maximum(p - q, 0.0)
                # Where both agree to the last bit nothing is left, and nothing was rejected but by rounding.
                return accepted, self._drawn(residual if residual.any() else p)
        return len(drafted), self.choose(logits[-1])

    def _drawn(self, probabilities: Array) -> int:
        cumulated = np.cumsum(probabilities)
        at = int(np.searchsorted(cumulated, self._draw.random() * cumulated[-1], side="right"))
        return min(at, len(cumulated) - 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
