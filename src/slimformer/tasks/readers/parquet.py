"""Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.errors import DataError
from slimformer.files import open_file
from slimformer.tasks.readers.table import Row, Table, refuse_large

if TYPE_CHECKING:
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
            table = parquet.read_table(file)
    except (ArrowException, OSError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).strip().splitlines()[0]
        raise DataError(f"`{path}` is not a Parquet file that can be read: {reason}; copy it again") from error
    rows = [Row(values, str(path), number) for number, values in enumerate(table.to_pylist(), start=1)]
    return Table(str(path), tuple(table.column_names), rows)
