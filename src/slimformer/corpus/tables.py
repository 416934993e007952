"""Parquet files and data sets on disk, read by row ranges."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.corpus.source import OnFault, Source, SourceFile, decode, text_column_of
from slimformer.errors import DataError
from slimformer.files import open_file
from slimformer.tasks.readers.parquet import check_repeats, why
from slimformer.tasks.splits import SYNONYMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Rows in the middle of a row group are reached by decoding those before, so its ranges are this many steps long.
_STEPS = 8
#: Bytes of text that are decoded at a time.
_BATCH = 2**20
_MOST_ROWS = 1024


@dataclass(frozen=True, slots=True)
class RowRange:
    """Some rows of one row group of a Parquet file.

    Args:
        group: Number of the row group.
        first: The first row, counted within the group.
        rows: How many rows.
        size: About how many bytes of text.
        before: Rows of the file before this range, for messages.
    """

    group: int
    first: int
    rows: int
    size: int
    before: int


@dataclass(frozen=True, slots=True)
class ParquetFile(Source):
    """A Parquet file with a column of text."""

    file: SourceFile
    column: str
    ranges: tuple[RowRange, ...]

    def sizes(self) -> list[int]:
        """Bytes of text of each range, before compression."""
        return [each.size for each in self.ranges]

    def read(self, segment: int, on_fault: OnFault) -> Iterator[str]:
        """The texts of one range; rows before it are decoded and dropped, a batch at a time."""
        wanted = self.ranges[segment]
        batch = max(1, min(_MOST_ROWS, wanted.rows * _BATCH // max(1, wanted.size)))
        name, row = str(self.file.path), wanted.before
        skip, left = wanted.first, wanted.rows
        for found in self._batches(wanted.group, batch):
            taken = found.slice(min(skip, len(found)), left)
            skip, left = max(0, skip - len(found)), left - len(taken)
            yield from texts_of(taken, name, row, on_fault)
            row += len(taken)
            if not left:
                return

    def stamp(self) -> bytes:
        """When the file was last written."""
        return self.file.stamp()

    def identity(self) -> Iterator[bytes]:
        """What the file is and which column is read."""
        yield from self.file.identity()
        yield f"ParquetFile {self.column}".encode()

    def _batches(self, group: int, rows: int) -> Iterator[Any]:
        from pyarrow import ArrowException

        try:
            with _opened(self.file.path) as opened:
                for batch in opened.iter_batches(rows, row_groups=[group], columns=[self.column], use_threads=False):
                    yield batch.column(0)
        except (ArrowException, OSError) as error:
            raise _broken(self.file.path, error) from error


@dataclass(frozen=True, slots=True)
class StoredDataset(Source):
    """A data set of the `datasets` library: Arrow files mapped into memory.

    Args:
        name: What messages call it.
        column: The column of text.
        dataset: The data set.
        rows: Rows of a segment.
        size: Bytes of the column.
    """

    name: str
    column: str
    dataset: Any = field(repr=False)
    rows: int
    size: int

    def sizes(self) -> list[int]:
        """Bytes of each range, as if all rows were equally long."""
        count = len(self.dataset)
        starts = range(0, count, self.rows)
        return [max(1, self.size * min(self.rows, count - start) // count) for start in starts]

    def read(self, segment: int, on_fault: OnFault) -> Iterator[str]:
        """The texts of one range of rows."""
        first = segment * self.rows
        found = self.dataset[first : first + self.rows].column(self.column)
        yield from texts_of(found, self.name, first, on_fault)

    def stamp(self) -> bytes:
        """When its files were last written."""
        files = (Path(file["filename"]) for file in self.dataset.cache_files)
        return " ".join(str(file.stat().st_mtime_ns) for file in files).encode()

    def identity(self) -> Iterator[bytes]:
        """How much text it holds, and what stands at either end."""
        yield f"StoredDataset {self.column} {len(self.dataset)} {self.size}".encode()
        for segment in sorted({0, len(self.sizes()) - 1}):
            yield from (text.encode() for text in self.read(segment, lambda fault: None))


def open_parquet(file: SourceFile, text_column: str | None, step: int) -> Source:
    """A Parquet file; its metadata tell where the rows lie."""
    from pyarrow import ArrowException

    try:
        with _opened(file.path) as opened:
            schema, metadata = opened.schema_arrow, opened.metadata
    except (ArrowException, OSError) as error:
        raise _broken(file.path, error) from error
    check_repeats(str(file.path), schema.names)
    column = text_column_of(schema.names, str(file.path), text_column)
    check_text(str(file.path), column, schema.field(column).type)
    return ParquetFile(file, column, tuple(_row_ranges(metadata, column, step * _STEPS)))


def open_stored(folder: Path, text_column: str | None, step: int) -> Source:
    """A folder that `save_to_disk` of the `datasets` library wrote."""
    from datasets import DatasetDict, load_from_disk

    try:
        found = load_from_disk(str(folder))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"`{folder}` is not a data set that can be read: {reason}; save it again") from error
    if isinstance(found, DatasetDict):
        return open_splits(str(folder), found, text_column, step)
    return _stored(str(folder), found, text_column, step)


def is_stored(folder: Path) -> bool:
    """Tell whether a folder was written by `save_to_disk`."""
    return (folder / "dataset_dict.json").is_file() or all(
        (folder / name).is_file() for name in ("dataset_info.json", "state.json")
    )


def open_splits(name: str, splits: Mapping[str, Any], text_column: str | None, step: int) -> Source:
    """Of the splits of a data set in the memory or mapped into it the one for training."""
    split = training_split(name, list(splits))
    return _stored(f"{name} {split}", splits[split], text_column, step)


def training_split(name: str, there: Sequence[str]) -> str:
    """The split that is learned from, or an error that names those there are."""
    found = [split for split in there if split in SYNONYMS["train"]] or (there if len(there) == 1 else [])
    if not found:
        raise DataError(f"`{name}` has no split `train`, but: {', '.join(there)}; give a data set that has one")
    return found[0]


def _stored(name: str, dataset: Any, text_column: str | None, step: int) -> Source:
    column = text_column_of(dataset.column_names, name, text_column)
    stored = dataset.data.column(column)
    check_text(name, column, stored.type)
    size = int(stored.nbytes)
    rows = max(1, len(dataset) * step // max(1, size))
    return StoredDataset(name, column, dataset.select_columns([column]).with_format("arrow"), rows, size)


def _row_ranges(metadata: Any, column: str, step: int) -> Iterator[RowRange]:
    before = 0
    for group in range(metadata.num_row_groups):
        described = metadata.row_group(group)
        count = described.num_rows
        chunks = (described.column(index) for index in range(described.num_columns))
        size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
        rows = max(1, count * step // max(1, size))
        for first in range(0, count, rows):
            taken = min(rows, count - first)
            yield RowRange(group, first, taken, max(1, size * taken // count), before + first)
        before += count


def bytes_of(texts: Any) -> Any:
    """An Arrow column of texts as one of their bytes."""
    import pyarrow as arrow

    plain = texts.cast(texts.type.value_type) if arrow.types.is_dictionary(texts.type) else texts
    return plain.cast(arrow.large_binary())


def texts_of(texts: Any, name: str, before: int, on_fault: OnFault) -> Iterator[str]:
    """The texts of an Arrow column; a missing one counts as blank.

    Args:
        texts: The column.
        name: What messages call it.
        before: Rows before it.
        on_fault: Told of bytes that are no text.
    """
    for row, content in enumerate(bytes_of(texts).to_pylist(), start=before + 1):
        text = "" if content is None else decode(content, name, on_fault, row=row)
        if text.strip():
            yield text


def check_text(name: str, column: str, kind: Any) -> None:
    """Refuse a column of another type."""
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)):
        raise DataError(f"column `{column}` of `{name}` holds `{kind}` and no text; choose with text_column")


def _opened(path: Path) -> Any:
    from pyarrow import parquet

    open_file(path).close()  # nothing but a file
    # Both are needed to have a column read piece by piece and not a whole row group of it at once.
    return parquet.ParquetFile(path, buffer_size=_BATCH, pre_buffer=False)


def _broken(path: Path, error: Exception) -> DataError:
    return DataError(f"`{path}` is not a Parquet file that can be read: {why(error)}; copy it again")
