"""Parameters of a test some of which count as slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def slow(values: Iterable[Any], *, only: Collection[Any] | None = None, but: Collection[Any] = ()) -> list[Any]:
    """All values, marked slow: only some of them, or all but some, which guard the room in `make quick`."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=pytest.mark.slow if (only is None or value in only) and value not in but else (),
        )
        for value in values
    ]
