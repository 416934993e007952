"""Shards: the tokens of some segments in a safetensors file, which is mapped and never read as a whole.

A shard is written under another name and renamed, so that whatever has its name is whole. The index is written after
the last of them; a folder without one is unfinished, and what lies there is gone on with.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from slimformer.corpus.tokens.tokens import Tokens, UnpreparedTokens
from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from slimformer.corpus.source import OnFault

INDEX = "index.safetensors"
#: Changes when files of an earlier version cannot be read.
FORMAT = "1"


def shard_name(number: int) -> str:
    """What a shard is called."""
    return f"{number:06d}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], key: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(save(dict(tensors), {"format": FORMAT, "key": key}))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_tensors(path: Path, names: Sequence[str], key: str) -> list[NDArray[Any]] | None:
    """Tensors of a file; None where it is not whole or belongs to something else."""
    try:
        with safe_open(path, framework="np") as file:
            if (file.metadata() or {}) != {"format": FORMAT, "key": key}:
                return None
            return [file.get_tensor(name) for name in names]
    except (OSError, SafetensorError):
        return None


@dataclass(frozen=True, eq=False)
class Counts:
    """How much the segments of a shard hold, or those of all shards.

    Args:
        sizes: Bytes of text of each segment.
        documents: Documents of each segment that have tokens.
        tokens: Tokens of each segment.
    """

    sizes: NDArray[np.int64]
    documents: NDArray[np.int64]
    tokens: NDArray[np.int64]

    @classmethod
    def stored(cls, path: Path, key: str) -> Counts | None:
        """Those of a shard; None where it is not whole."""
        tensors = read_tensors(path, ("sizes", "documents", "tokens"), key)
        return None if tensors is None else cls(*tensors)


@dataclass(frozen=True)
class Mark:
    """Where a corpus goes on behind a shard.

    Args:
        source: Number of the source.
        after: What the source goes on from.
    """

    source: int
    after: str

    @classmethod
    def stored(cls, path: Path, key: str) -> Mark | None:
        """That of a shard; None for one without, or that is not whole."""
        tensors = read_tensors(path, ("source", "after"), key)
        return None if tensors is None else cls(int(tensors[0][0]), tensors[1].tobytes().decode())

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What is stored of it."""
        return {"source": np.array([self.source], np.int64), "after": np.frombuffer(self.after.encode(), np.uint8)}


def write_shard(
    path: Path, segments: Sequence[tuple[int, Tokens]], key: str, dtype: type, mark: Mark | None = None
) -> Counts:
    """Write the tokens of segments with their sizes, and where the corpus goes on if that can be told."""
    joined = Tokens.joined(tokens for _, tokens in segments)
    counts = Counts(
        *(
            np.array(values, np.int64)
            for values in (
                [size for size, _ in segments],
                [len(tokens.lengths) for _, tokens in segments],
                [len(tokens.ids) for _, tokens in segments],
            )
        )
    )
    tensors = {**vars(counts), "ids": joined.ids.astype(dtype), "lengths": joined.lengths.astype(np.uint32)}
    tensors |= mark.tensors() if mark is not None else {}
    write_tensors(path, tensors, key)
    return counts


def write_index(folder: Path, counts: Sequence[Counts], key: str) -> None:
    """Note what all shards hold, which makes the folder whole."""
    paths = [folder / shard_name(number) for number in range(len(counts))]
    tensors = {
        "segments": np.array([len(each.sizes) for each in counts], np.int64),
        "bytes": np.array([path.stat().st_size for path in paths], np.int64),
        **{name: np.concatenate([getattr(each, name) for each in counts]) for name in ("sizes", "documents", "tokens")},
    }
    write_tensors(folder / INDEX, tensors, key)


class StoredTokens(UnpreparedTokens):
    """The tokens of a corpus as they lie in shards. It holds no file open, so it may go to other processes.

    Args:
        folder: The folder of the shards.
        segments: Segments of each shard.
        counts: What every segment holds.
    """

    def __init__(self, folder: Path, segments: NDArray[np.int64], counts: Counts) -> None:
        self.folder = folder
        self.counts = counts
        self._ends = np.cumsum(segments)
        shard = np.searchsorted(self._ends, np.arange(len(counts.sizes)), side="right")
        first = (self._ends - segments)[shard]
        self._shard = shard
        # Where in its shard each segment begins.
        self._token, self._document = (
            before - before[first] for before in (np.cumsum(each) - each for each in (counts.tokens, counts.documents))
        )

    @classmethod
    def open(cls, folder: Path, key: str) -> StoredTokens | None:
        """The tokens in a folder; None where they are not whole or belong to another corpus or tokenizer."""
        index = read_tensors(folder / INDEX, ("segments", "bytes", "sizes", "documents", "tokens"), key)
        if index is None:
            return None
        segments, sizes, *counts = index
        paths = (folder / shard_name(number) for number in range(len(segments)))
        if any(not path.is_file() or path.stat().st_size != size for path, size in zip(paths, sizes, strict=True)):
            return None
        return cls(folder, segments, Counts(*counts))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of text of each segment."""
        return self.counts.sizes

    def read(self, segments: Sequence[int], on_fault: OnFault) -> Tokens:
        """The tokens of some segments, one after the other."""
        return Tokens.joined(self._segment(segment) for segment in segments if self.counts.tokens[segment])

    def lengths(self, segments: Sequence[int]) -> NDArray[np.int64]:
        """Tokens of each document of some segments."""
        filled = (segment for segment in segments if self.counts.documents[segment])
        lengths = [self._stored(segment, "lengths")[0].astype(np.int64) for segment in filled]
        return np.concatenate([np.empty(0, np.int64), *lengths])

    def _segment(self, segment: int) -> Tokens:
        ids, lengths = self._stored(segment, "ids", "lengths")
        return Tokens(ids.astype(np.int32), lengths.astype(np.int64))

    def _stored(self, segment: int, *names: str) -> list[NDArray[Any]]:
        """What a shard holds of a segment under some names."""
        path = self.folder / shard_name(int(self._shard[segment]))
        spans = {
            name: slice(int(begin[segment]), int(begin[segment] + count[segment]))
            for name, begin, count in (
                ("ids", self._token, self.counts.tokens),
                ("lengths", self._document, self.counts.documents),
            )
        }
        try:
            with safe_open(path, framework="np") as file:
                return [file.get_slice(name)[spans[name]] for name in names]
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"`{path}` with tokens of the corpus cannot be read any more: {error}; start again, and it is made anew"
            ) from error
