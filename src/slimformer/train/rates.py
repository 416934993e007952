"""A grid of learning rates, widened while the best one lies on its border (arXiv 2004.12406, Appendix A).

The learning rate is the one value that the paper tunes: it starts from a grid and extends it where the best rate is
the lowest or the highest one tried.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from slimformer.config import LARGEST, LEAST, Config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Rates that one run may be asked to try.
MOST_RATES = 32


def _read_rates(value: Any) -> Any:
    """Accept `1e-5,3e-5,1e-4` as well as a list, in any order."""
    if value is None:
        return None
    items = [value] if isinstance(value, str | int | float) else list(value)
    parts = [part.strip() for item in items for part in str(item).split(",")]
    try:
        rates = tuple(sorted(float(part) for part in parts))
    except ValueError:
        raise ValueError("give learning rates such as `1e-5,3e-5,1e-4`") from None
    if any(rate <= 0 for rate in rates):
        raise ValueError("a learning rate is greater than 0")
    for rate in rates:
        if not math.isnan(rate) and not LEAST <= rate <= LARGEST:
            raise ValueError(f"{rate:g} is no learning rate; give {LEAST:g} to {LARGEST:g}")
    # The run at a rate is named by it, in as many digits as are shown.
    if not 2 <= len({f"{rate:g}" for rate in rates}) == len(rates) <= MOST_RATES:
        raise ValueError(f"give from 2 to {MOST_RATES} learning rates, all of them different")
    return rates


class RateOptions(Config):
    """Learning rates to choose from."""

    # Read as text: on a command line all rates stand in one value.
    lr_grid: Annotated[tuple[float, ...] | None, BeforeValidator(_read_rates)] = Field(
        None,
        description="Learning rates to try, such as `1e-5,3e-5,1e-4`, instead of `--lr`; the best on dev is kept.",
    )
    lr_widenings: int = Field(
        3, ge=0, le=MOST_RATES, description="Rates to add at most to `--lr-grid` while the best one is on its border."
    )

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        # Settings that were written out as a whole name the default too, which nobody chose.
        if self.lr_grid is not None and getattr(self, "lr", None) != type(self).model_fields["lr"].default:
            raise ValueError("`lr` and `lr_grid` both say how fast to learn; keep one of them")
        return self


#: Settings that say how a learning rate is chosen, and not what a run at that rate computes.
RATE_SETTINGS = frozenset(RateOptions.model_fields)


def best_rate(scores: Mapping[float, float | None]) -> float:
    """The rate with the highest score; the lowest of equals.

    Args:
        scores: Rate → score, higher is better; None for a run that diverged. At least one has a score.
    """
    scored = {rate: score for rate, score in scores.items() if score is not None}
    return max(scored, key=lambda rate: (scored[rate], -rate))


def next_rate(grid: Sequence[float], scores: Mapping[float, float | None]) -> float | None:
    """The rate beyond the border on which the best one lies, at the grid's own factor.

    None if the best lies inside, or one inside is as good.

    Args:
        grid: The rates that were asked for.
        scores: Rate → score of every rate tried, widenings included.
    """
    best = best_rate(scores)
    # The mean factor: an even grid such as 1e-5, 2e-5, …, 9e-5 would otherwise grow by an eighth at its upper end.
    factor = (max(grid) / min(grid)) ** (1 / (len(grid) - 1))
    border = (min(scores), max(scores))
    if any(score == scores[best] for rate, score in scores.items() if rate not in border):
        return None
    beyond = best / factor if best == min(scores) else best * factor
    rounded = float(f"{beyond:.2g}")
    # A very fine grid would be rounded back to a rate that was tried.
    further = beyond if min(scores) <= rounded <= max(scores) else rounded
    return further if LEAST <= further <= LARGEST else None
