"""Cutting rows apart so that nothing leaks from one split into another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from slimformer.tasks.splits import carve_groups, carve_in_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slimformer.tasks.readers import Row


def carved_rows(
    rows: Sequence[Row], shares: Mapping[str, float], group: Sequence[str], *, in_order: bool
) -> dict[str, list[Row]]:
    """Divide rows by the values of the `group` columns, or one part after the other for running text."""
    if in_order:
        return carve_in_order(rows, shares)
    return carve_groups(rows, shares, lambda row: _key(row, group))


def without_texts_of(rows: Sequence[Row], others: Sequence[Row], text: Sequence[str]) -> list[Row]:
    """The rows whose texts do not occur among the others."""
    seen = {_key(row, text) for row in others}
    return [row for row in rows if _key(row, text) not in seen]


def _key(row: Row, columns: Sequence[str]) -> str:
    values = (row.values.get(column) for column in columns)
    # An image says what it is known by; a path would make the division depend on where the data lies.
    return json.dumps([str(getattr(value, "key", value)) for value in values])
