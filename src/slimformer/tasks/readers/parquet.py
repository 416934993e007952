"""Parquet files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slimformer.errors import DataError
from slimformer.files import open_file
from slimformer.tasks.readers.table import Row, Table, refuse_large

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def read_parquet(path: Path) -> Table:
    """Read a Parquet file; the line of a row is its number, counted from 1."""
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        with open_file(path) as file:
            metadata = parquet.read_metadata(file)
            groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
            refuse_large(str(path), sum(group.total_byte_size for group in groups), metadata.num_rows)
            check_repeats(str(path), metadata.schema.to_arrow_schema().names)
            table = parquet.read_table(file)
            # Values that Python has no type for, and bytes that are no UTF-8, are found only here.
            values = table.to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(f"`{path}` holds text that is not UTF-8: {error.reason}; write it again") from error
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"`{path}` is not a Parquet file that can be read: {why(error)}; copy it again") from error
    rows = [Row(value, str(path), number) for number, value in enumerate(values, start=1)]
    return Table(str(path), tuple(table.column_names), rows)


def check_repeats(name: str, columns: Sequence[str]) -> None:
    """Refuse columns of the same name."""
    for column, count in Counter(columns).items():
        if count > 1:
            raise DataError(f"`{name}` names column `{column}` twice; give every column its own name")


def why(error: Exception) -> str:
    """The first sentence of what Arrow says."""
    text = (getattr(error, "strerror", None) or str(error)).strip()
    return text.splitlines()[0].partition(". ")[0].rstrip(".") if text else type(error).__name__
