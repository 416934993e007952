from __future__ import annotations

import pyarrow
import pyarrow.parquet
import pytest

from slimformer.errors import DataError
from slimformer.tasks.readers.parquet import read_parquet


def test_rows_keep_lists_and_numbers(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"tokens": [["a", "b"], ["c"]], "label": [1, 0]}), path)
    table = read_parquet(path)
    assert table.columns == ("tokens", "label")
    assert [(row.line, row.values["tokens"]) for row in table.rows] == [(1, ["a", "b"]), (2, ["c"])]


def test_other_bytes_and_empty_tables_are_refused(write, tmp_path):
    with pytest.raises(DataError, match=r"a.parquet` is not a Parquet file that can be read"):
        read_parquet(write("a.parquet", "no"))
    path = tmp_path / "b.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), path)
    with pytest.raises(DataError, match=r"b.parquet` holds no rows"):
        read_parquet(path)
