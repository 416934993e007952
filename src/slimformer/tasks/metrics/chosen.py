"""Metrics by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Metrics of which less is better.
SMALLER_IS_BETTER = frozenset({"loss", "perplexity", "mean_squared_error"})


def chosen(known: Mapping[str, Callable[[], float]], names: Sequence[str]) -> dict[str, float]:
    """Compute the metrics named, as plain numbers; a name that is not known is an error."""
    for name in names:
        if name not in known:
            raise DataError(f"metric `{name}` does not fit this task; give some of: {', '.join(known)}")
    return {name: float(known[name]()) for name in names}
