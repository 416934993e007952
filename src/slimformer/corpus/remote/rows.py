"""The rows of a Hub data set as a source that is read forwards, and gone on with where the connection broke."""

from __future__ import annotations

import json
import sys
import time
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slimformer.corpus.source import OnFault, Piece, ResumableSource
from slimformer.corpus.tables import bytes_of, texts_of
from slimformer.errors import DataError
from slimformer.files import parse_json
from slimformer.models.hub import causes_of, quiet_unless_watched, status_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slimformer.tasks.readers.hub import HubName

#: Rows that are decoded at a time.
_ROWS = 256
#: How often in a row a lost connection is made anew, and seconds before the first time; each wait is twice the last.
#: The `datasets` library itself waits for minutes where a file is being read, so few are enough.
RETRIES, WAIT = 4, 1.0
#: With these the Hub asks to come back later.
_LATER = (408, 429)
#: What libraries of HTTP call their errors of the network: `httpx` and its successors the first three, `requests` the
#: others.
_NETWORK_ERRORS = (
    "TimeoutException",
    "NetworkError",
    "RemoteProtocolError",
    "Timeout",
    "ConnectionError",
    "ChunkedEncodingError",
)


@dataclass(frozen=True)
class _Place:
    """Where a piece begins.

    Args:
        row: Rows before it.
        state: Where the `datasets` library stood before a batch of rows; None for the beginning.
        skip: Rows of that batch before the piece.
    """

    row: int = 0
    state: dict[str, Any] | None = None
    skip: int = 0

    @classmethod
    def read(cls, mark: str) -> _Place:
        """The place of a mark; rows are counted anew where another version of the library wrote it."""
        if not mark:
            return cls()
        values = parse_json(mark)
        place = cls(**values["place"])
        return place if values["datasets"] == _version() else cls(place.row, None, place.row)

    def mark(self) -> str:
        """The place in a line."""
        return json.dumps({"datasets": _version(), "place": asdict(self)})


@dataclass(frozen=True, slots=True)
class HubRows(ResumableSource):
    """A split of a data set of the Hub at one commit.

    Args:
        dataset: The data set; its revision is the commit.
        label: What messages call it: what was typed, and the split.
        split: The split.
        column: The column of text.
        step: Bytes of a segment.
        by_column: Whether the files can be read without their other columns.
        rows: Rows of the split; 0 where its authors do not say.
        stored: About how many bytes of text its files hold, by their sizes; 0 where the rows are known.
    """

    dataset: HubName
    label: str
    split: str
    column: str
    step: int
    by_column: bool
    rows: int
    stored: int
    reason: ClassVar[str] = "is streamed from the Hub"

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.label

    @property
    def instead(self) -> str:
        """What a user can do to have it read from anywhere."""
        return f"fetch it with `hf download --repo-type dataset {self.dataset.name} --local-dir FOLDER` and give FOLDER"

    def total(self) -> int:
        """About how many bytes of text there are, as if all rows were as long as the first are."""
        first = _first(self)
        if first is None or not first.after:
            return first.size if first is not None else 0
        whole = self.rows * first.size // _Place.read(first.after).row if self.rows else self.stored
        return max(first.size, whole)

    def pieces(self) -> Iterator[Piece]:
        """The bytes of every segment, in order; the first is remembered, and not fetched for every look at it."""
        first = _first(self)
        if first is not None:
            yield first
            if first.after:
                yield from self.pieces_after(first.after)

    def pieces_after(self, after: str) -> Iterator[Piece]:
        """The bytes of the segments behind a piece with this mark; of all where it is empty."""
        place = _Place.read(after)
        row, skip, waiting, size = place.row, place.skip, list[Any](), 0
        for state, texts in _batches(self, place.state, place.row - place.skip):
            begin = min(skip, len(texts))
            skip -= begin
            ends = np.cumsum(_lengths(texts[begin:]))
            cut, done = 0, 0
            while (last := int(np.searchsorted(ends, done + self.step - size))) < len(ends):
                waiting.append(texts[begin + cut : begin + last + 1])
                size, cut, done = size + int(ends[last]) - done, last + 1, int(ends[last])
                following = row + sum(map(len, waiting))
                yield Piece(size, row, _packed(waiting), _Place(following, state, begin + cut).mark())
                row, waiting, size = following, [], 0
            if cut < len(ends):
                waiting.append(texts[begin + cut :])
                size += int(ends[-1]) - done
        if waiting:
            yield Piece(size, row, _packed(waiting))

    def documents_in(self, begin: int, content: bytes, on_fault: OnFault) -> Iterator[str]:
        """The documents that the bytes of a segment hold."""
        import pyarrow as arrow

        with arrow.ipc.open_stream(content) as stream:
            yield from texts_of(stream.read_all().column(0), self.name, begin, on_fault)

    def identity(self) -> Iterator[bytes]:
        """Which rows of which commit there are, and how they are cut."""
        parts = (self.dataset.name, self.dataset.config, self.split, self.dataset.revision, self.column, self.step)
        yield json.dumps(["HubRows", *parts]).encode()


@lru_cache(maxsize=16)
def _first(source: HubRows) -> Piece | None:
    return next(source.pieces_after(""), None)


def _batches(source: HubRows, state: dict[str, Any] | None, row: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Bytes of the texts of some rows at a time, and where the library stood before them.

    Args:
        source: Which rows.
        state: Where the library stood; None for the beginning.
        row: Rows before that, for messages.
    """
    failures = 0
    while True:
        try:
            rows = _streamed(source)
            if state is None:
                state = rows.state_dict()
            else:
                rows.load_state_dict(state)
            for table in rows.iter(_ROWS):
                texts = bytes_of(table.column(source.column))
                yield state, texts
                state, row, failures = rows.state_dict(), row + len(texts), 0
            return
        except Exception as error:
            failures += 1
            if not lost(error):
                raise _unreadable(source, row, error) from error
            if failures > RETRIES:
                raise DataError(
                    f"the connection to the Hub broke after row {row:,} of `{source.label}` and could not be made "
                    "again; check the network and start again: tokens made so far are kept, and the rest is fetched"
                ) from error
            time.sleep(WAIT * 2 ** (failures - 1))
            _forget_listings()


def _unreadable(source: HubRows, row: int, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return DataError(
        f"`{source.label}` cannot be read after row {row:,}: {reason}; give another revision as "
        f"`{source.dataset.name}@REVISION`, or files"
    )


def lost(error: Exception) -> bool:
    """Whether it was the network, or a server that is out of order."""
    status = status_of(error)
    if status is not None:
        return status >= 500 or status in _LATER
    # No file of a commit goes away: `datasets` says so of one that could not be asked for.
    kinds: tuple[type[BaseException], ...] = (ConnectionError, TimeoutError, FileNotFoundError, *_network_errors())
    return any(isinstance(each, kinds) for each in causes_of(error))


@lru_cache(maxsize=1)
def _network_errors() -> tuple[type[BaseException], ...]:
    """What the library of HTTP raises where the network fails.

    Which library that is changes with the version of the Hub's own, whose error for a refusal is derived from its.
    """
    from huggingface_hub.errors import HfHubHTTPError

    modules = [sys.modules.get(kind.__module__) for kind in HfHubHTTPError.__mro__]
    kinds = (getattr(module, name, None) for module in modules for name in _NETWORK_ERRORS)
    return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseException))


def _forget_listings() -> None:
    """Have files looked up anew: what was noted of them while the network failed may be wrong."""
    from huggingface_hub import HfFileSystem

    HfFileSystem.clear_instance_cache()


def _streamed(source: HubRows) -> Any:
    """The rows, as Arrow tables with the column of text; a copy, because the library keeps its place in them."""
    from datasets import config

    rows = deepcopy(_loaded(config.HF_ENDPOINT, source.dataset, source.split, source.column, source.by_column))
    return rows.with_format("arrow")


@lru_cache(maxsize=16)
def _loaded(endpoint: str, dataset: HubName, split: str, column: str, by_column: bool) -> Any:
    from datasets import load_dataset

    # Of Parquet the other columns are not even fetched, and a row group is decoded piece by piece.
    settings: dict[str, Any] = {"columns": [column], "batch_size": _ROWS} if by_column else {}
    with quiet_unless_watched():
        return load_dataset(
            dataset.name, dataset.config, split=split, revision=dataset.revision, streaming=True, **settings
        )


def _lengths(texts: Any) -> Any:
    """Bytes of texts, each with the end of its line."""
    import pyarrow.compute as compute

    return compute.fill_null(compute.binary_length(texts), 0).to_numpy() + 1


def _packed(texts: list[Any]) -> bytes:
    """Some Arrow columns, one after the other, as bytes."""
    import pyarrow as arrow

    chunks = [chunk for each in texts for chunk in each.chunks]
    joined = arrow.concat_arrays(chunks)  # so that the same rows are the same bytes however they came
    table = arrow.table({"text": joined})
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _version() -> str:
    import datasets

    return str(datasets.__version__)
