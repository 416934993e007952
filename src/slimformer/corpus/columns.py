"""Which column of a table holds the text: as told, `text`, or the only one that can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.errors import DataError
from slimformer.tasks.columns import IDS, TEXTS, listed

if TYPE_CHECKING:
    from collections.abc import Sequence


def text_column_of(columns: Sequence[str], file: str, given: str | None) -> str:
    """The text column of a file, or an error that names the columns seen."""
    if given is not None:
        if given not in columns:
            raise DataError(f"`{file}` has no column `{given}`; it has {listed(columns)}; choose with text_column")
        return given
    if "text" in columns:
        return "text"
    named = [name for name in columns if name.lower() in TEXTS]
    likely = named or [name for name in columns if name.lower() not in IDS]
    if len(likely) != 1:
        raise DataError(
            f"`{file}` does not tell which column holds the text: it has {listed(columns)}; name it with text_column"
        )
    return likely[0]


def check_names(names: Sequence[str], file: str) -> list[str]:
    """The column names of a header line; each may stand there once."""
    stripped = [name.strip() for name in names]
    for name in stripped:
        if stripped.count(name) > 1:
            raise DataError(f"`{file}` line 1 names column `{name}` twice; give every column its own name")
    return stripped
