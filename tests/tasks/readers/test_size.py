"""How much of a file is held in memory, and which are too large for it."""

from __future__ import annotations

import gzip

import pytest

from slimformer.errors import DataError
from slimformer.inference.bench import PeakMemory
from slimformer.tasks.readers import read
from slimformer.tasks.readers.images import ImageFile
from slimformer.tasks.readers.table import MOST_BYTES, MOST_ROWS

MEGABYTE = 2**20


def packed(path, line, lines, times):
    """A gzip file of many members, which is written at once however much it unpacks to."""
    member = gzip.compress(line * lines, 1)
    with path.open("wb") as file:
        file.write(gzip.compress(b"text,label\n"))
        for _ in range(times):
            file.write(member)
    return path


@pytest.mark.slow
def test_reading_takes_little_more_memory_than_the_rows(tmp_path):
    """300 MB of CSV: its bytes, its text and its rows were held at once, five times as much."""
    line = b"a film" * 5_000 + b",yes\n"
    path = packed(tmp_path / "train.csv.gz", line, 100, 100)
    with PeakMemory() as memory:
        table = read(path, "csv", "train")
    assert len(table.rows) == 10_000
    assert memory.growth < 1.3 * len(line) * len(table.rows)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["csv", "jsonl"])
def test_a_file_that_unpacks_to_gigabytes_is_refused_in_little_memory(reader, tmp_path):
    path = packed(tmp_path / f"train.{reader}.gz", b"a" * 62 + b",\n", MEGABYTE, MOST_BYTES // (64 * MEGABYTE) + 1)
    assert path.stat().st_size < 20 * MEGABYTE
    with PeakMemory() as memory, pytest.raises(DataError, match=r"more than 2,147,483,648 bytes.*give a part of it"):
        read(path, reader, "train")
    assert memory.growth < 50 * MEGABYTE


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    for name, reader in (("train.tsv", "tsv"), ("train.txt", "text"), ("train-images-idx3", "idx")):
        with (tmp_path / name).open("wb") as file:
            file.truncate(MOST_BYTES + 1)  # a hole, which takes no space
        with pytest.raises(DataError, match="bytes, which labelled data may have"):
            read(tmp_path / name, reader, "train")


def test_parquet_is_refused_by_what_it_unpacks_to(tmp_path):
    import pyarrow as arrow
    from pyarrow import parquet

    zeros = arrow.DictionaryArray.from_arrays(arrow.array([0] * (MOST_ROWS + 1), arrow.int8()), ["a"])
    parquet.write_table(arrow.table({"text": zeros}), tmp_path / "train.parquet")
    assert (tmp_path / "train.parquet").stat().st_size < MEGABYTE
    with pytest.raises(DataError, match="more than 20,000,000 rows"):
        read(tmp_path / "train.parquet", "parquet", "train")


def test_an_image_file_of_gigabytes_is_not_read(tmp_path):
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(10**10)
    with PeakMemory() as memory, pytest.raises(DataError, match="it has more than 268,435,456 bytes"):
        ImageFile(str(tmp_path / "a.png")).open()
    assert memory.growth < 400 * MEGABYTE
