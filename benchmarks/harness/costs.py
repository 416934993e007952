"""What speculative decoding should gain by the costs of single forwards alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slimformer.sizes.decoding.draft import DraftStatistics

#: Tokens of a draft where its length is given.
LENGTH = 4
COUNTED = ("drafted", "accepted", "draft_calls", "verify_calls", "generated")


def calls_of(runs: Iterable[DraftStatistics]) -> dict[str, int]:
    """What drafting did in all of some runs."""
    kept = list(runs)
    return {name: sum(getattr(each, name) for each in kept) for name in COUNTED}


def predicted(costs: dict[str, float], tokens: float, draft: str, length: int) -> float:
    """Speed over plain XL by the cost of forwards alone, where a verification gives so many tokens."""
    step = length * costs[draft] + costs[f"XL, {length + 1} tokens"]
    return round(tokens * costs["XL, 1 token"] / step, 3)


def break_even(costs: dict[str, float], draft: str, length: int) -> float | None:
    """Chance that a token is accepted from which drafting pays; None where not even certainty would do.

    Of k tokens, (1 - r^(k+1)) / (1 - r) come of it (Leviathan et al., arXiv 2211.17192, equation 1).
    """
    for rate in (number / 1000 for number in range(1000)):
        if predicted(costs, (1 - rate ** (length + 1)) / (1 - rate), draft, length) >= 1:
            return rate
    return None


def predicted_by_calls(costs: dict[str, float], calls: dict[str, int], draft: str) -> float:
    """Speed over plain XL by the cost of forwards alone, whatever the lengths of drafts were.

    Each drafted token makes the verification of its draft dearer by as much, that of five tokens tells how much.
    """
    one = costs["XL, 1 token"]
    more = (costs[f"XL, {LENGTH + 1} tokens"] - one) / LENGTH
    spent = calls["draft_calls"] * costs[draft] + calls["verify_calls"] * one + calls["drafted"] * more
    return round(calls["generated"] * one / spent, 3)
