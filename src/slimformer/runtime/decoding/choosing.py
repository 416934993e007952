"""Which token comes next: the likeliest, or one drawn from what is left of the distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slimformer.config import check_count
from slimformer.errors import ConfigError, describe

if TYPE_CHECKING:
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
        self._draw = None if sampling is None else np.random.default_rng(sampling.seed)

    def choose(self, logits: Array) -> int:
        """A token by its logits."""
        if self.sampling is None or self._draw is None:
            return int(np.argmax(logits))
        cumulated = np.cumsum(self.sampling.probabilities(logits))
        at = int(np.searchsorted(cumulated, self._draw.random() * cumulated[-1], side="right"))
        return min(at, len(cumulated) - 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
