"""Making the tokens of a corpus once, in as many processes as there are cores."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slimformer.corpus.source import Fault, OnFault, Outlive, Piece, ResumableSource, SequentialSource
from slimformer.corpus.tokens.processes import Processes
from slimformer.corpus.tokens.shards import Counts, Mark, StoredTokens, shard_name, write_index, write_shard
from slimformer.corpus.tokens.tokens import Tokens
from slimformer.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slimformer.corpus.corpus import Corpus
    from slimformer.corpus.examples import Encoder

#: Bytes of text whose tokens make a shard.
SHARD = 2**25
#: Bytes of text that make a token, about.
_BYTES_PER_TOKEN = 4
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Told how many bytes of text are done, and of about how many.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    """The segments of one shard: numbers of segments, or their bytes where a source is read forwards.

    Args:
        number: Number of the shard.
        segments: Number of the source, size, and the segment itself.
    """

    number: int
    segments: list[tuple[int, int, int | Piece]]

    def mark(self) -> Mark | None:
        """Where the corpus goes on behind it, if its last source can tell."""
        source, _, segment = self.segments[-1]
        return Mark(source, segment.after) if isinstance(segment, Piece) and segment.after else None


@dataclass(frozen=True)
class Done:
    """A shard that was written, or lay there.

    Args:
        counts: What it holds.
        faults: The first fault of each file.
    """

    counts: Counts
    faults: list[Fault]


@dataclass(frozen=True)
class ShardMaker:
    """Makes shards, here or in another process.

    Args:
        corpus: The text.
        encoder: What makes tokens of it.
        folder: Where shards go.
        key: What they belong to.
    """

    corpus: Corpus
    encoder: Encoder
    folder: Path
    key: str

    def __call__(self, job: Job) -> Done:
        """Make one shard."""
        faults: dict[str, Fault] = {}
        segments = []
        for source, size, segment in job.segments:
            documents = self._documents(source, segment, lambda fault: _note(faults, fault))
            segments.append((size, Tokens.of(self.encoder.encode(filter(self.corpus.holds, documents)))))
        dtype = np.uint16 if self.encoder.vocabulary <= 2**16 else np.int32
        path = self.folder / shard_name(job.number)
        return Done(write_shard(path, segments, self.key, dtype, job.mark()), list(faults.values()))

    def _documents(self, number: int, segment: int | Piece, on_fault: OnFault) -> Iterator[str]:
        source = self.corpus.sources[number]
        if isinstance(segment, int):
            return source.read(segment, on_fault)
        assert isinstance(source, SequentialSource)
        return source.documents_in(segment.begin, segment.content, on_fault)


def _note(faults: dict[str, Fault], fault: Fault) -> None:
    faults.setdefault(fault.file, fault)


def key_of(corpus: Corpus, encoder: Encoder) -> str:
    """What tells the tokens of a corpus from others: its files, when they were written, and the tokenizer."""
    layout = [[int(size) for size in source.sizes()] for source in corpus.sources if source.seekable]
    stamps = [source.stamp().decode() for source in corpus.sources]
    settings = [corpus.digest(), corpus.selection(), layout, stamps, encoder.digest()]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]


def open_tokens(
    corpus: Corpus, encoder: Encoder, place: Path, workers: int | None = None, progress: Progress | None = None
) -> StoredTokens:
    """The tokens of a corpus from a cache, in which they are put first if they do not lie there.

    Each corpus has a folder of its own in the cache, named after its content and the tokenizer: another tokenizer or a
    changed file leads to another folder, so nothing stale is ever read, and nothing that another run uses is replaced.

    Args:
        corpus: The text.
        encoder: What makes tokens of it.
        place: The cache.
        workers: Processes that work beside this one; by default as many as there are cores.
        progress: Told how far it is.
    """
    key = key_of(corpus, encoder)
    folder = place / key
    stored = StoredTokens.open(folder, key)
    if stored is not None:
        return stored
    with _writing(folder), _alone(folder) as locked:
        for draft in folder.glob(".*.tmp") if locked else ():
            draft.unlink()  # of a process that was killed
        stored = StoredTokens.open(folder, key)  # another process may have been at it
        if stored is None:
            _check_space(corpus, encoder, folder)
            _build(corpus, ShardMaker(corpus, encoder, folder, key), workers or cores(), progress)
            stored = StoredTokens.open(folder, key)
    if stored is None:
        raise DataError(f"`{folder}` was changed while tokens were written there; start again")
    return stored


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _build(corpus: Corpus, make: ShardMaker, workers: int, progress: Progress | None) -> None:
    total, done, counts = corpus.size, 0, []
    on_fault = Outlive()
    # A process takes a second to start: not worth it for a single shard.
    workers = min(workers, -(-total // SHARD))
    for each in _made(corpus, make, workers):
        counts.append(each.counts)
        for fault in each.faults:
            on_fault(fault)
        done += int(each.counts.sizes.sum())
        if progress is not None:
            progress(done, max(total, done))
    write_index(make.folder, counts, make.key)


def _made(corpus: Corpus, make: ShardMaker, workers: int) -> Iterator[Done]:
    """What becomes of each job, in order; shards that lie there are not made again."""
    passed, mark = _passed(make)
    yield from (Done(counts, []) for counts in passed)
    broken = list[DataError]()
    jobs = _until_broken(_jobs(corpus, len(passed), mark), broken)
    if workers <= 1:
        for job in jobs:
            yield _kept(make, job) or make(job)
    else:
        with Processes[Job, Done](make, workers) as processes:
            yield from processes.map(jobs, lambda job: _kept(make, job))
    if broken:
        raise broken[0]


def _until_broken(jobs: Iterator[Job], broken: list[DataError]) -> Iterator[Job]:
    """The jobs up to where the text cannot be read: those begun are finished before that is said."""
    try:
        yield from jobs
    except DataError as error:
        broken.append(error)


def _passed(make: ShardMaker) -> tuple[list[Counts], Mark | None]:
    """The first shards that lie there, up to the last of them that tells where the corpus goes on, and where it does.

    Their text need not be read again, which matters where it comes over a network.
    """
    passed, waiting, mark = list[Counts](), list[Counts](), None
    while (counts := Counts.stored(path := make.folder / shard_name(len(passed) + len(waiting)), make.key)) is not None:
        waiting.append(counts)
        if (following := Mark.stored(path, make.key)) is not None:
            passed, waiting, mark = passed + waiting, [], following
    return passed, mark


def _kept(make: ShardMaker, job: Job) -> Done | None:
    """The shard of a job that an earlier process wrote before it was killed."""
    counts = Counts.stored(make.folder / shard_name(job.number), make.key)
    whole = counts is not None and counts.sizes.tolist() == [size for _, size, _ in job.segments]
    return Done(counts, []) if whole and counts is not None else None


def _jobs(corpus: Corpus, number: int, mark: Mark | None) -> Iterator[Job]:
    """The jobs from one on; the shard before it, if any, has the mark."""
    segments, size = list[tuple[int, int, int | Piece]](), 0
    for source, extent, segment in _segments(corpus, mark):
        segments.append((source, extent, segment))
        size += extent
        if size >= SHARD:
            yield Job(number, segments)
            number, segments, size = number + 1, [], 0
    if segments:
        yield Job(number, segments)


def _segments(corpus: Corpus, mark: Mark | None) -> Iterator[tuple[int, int, int | Piece]]:
    for number, source in enumerate(corpus.sources):
        if mark is not None and number <= mark.source:
            if number == mark.source:
                assert isinstance(source, ResumableSource)
                yield from ((number, piece.size, piece) for piece in source.pieces_after(mark.after))
        elif isinstance(source, SequentialSource):
            yield from ((number, piece.size, piece) for piece in source.pieces())
        else:
            yield from ((number, int(size), segment) for segment, size in enumerate(source.sizes()))


def _check_space(corpus: Corpus, encoder: Encoder, folder: Path) -> None:
    """Refuse at once what would fill the disk after hours; what an earlier process wrote counts."""
    width = 2 if encoder.vocabulary <= 2**16 else 4
    there = sum(path.stat().st_size for path in folder.iterdir())
    needed, free = corpus.size // _BYTES_PER_TOKEN * width - there, shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"about {needed:,} bytes are needed")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Make a folder for tokens; whatever cannot be written is said in one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno in _FULL:
            free = shutil.disk_usage(next(path for path in folder.parents if path.exists())).free
            raise DataError(
                f"no space for the tokens of the corpus in `{folder.parent}`: {reason}, {free:,} are free; free some, "
                "give another folder with `--token-cache`, or `--token-cache off`"
            ) from error
        raise DataError(
            f"the tokens of the corpus cannot be written to `{folder.parent}`: {reason}; give another folder with "
            "`--token-cache`, or `--token-cache off`"
        ) from error


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Wait until no other process writes here; False where none can be kept out, and two write the same twice."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    with (folder / ".lock").open("w") as lock:
        locked = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            locked = False
        yield locked
