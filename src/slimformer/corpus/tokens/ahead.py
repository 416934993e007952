"""Tokens of the next blocks, made by processes beside this one while the present block is trained on."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.corpus.source import Fault, OnFault
from slimformer.corpus.tokens.processes import Processes
from slimformer.corpus.tokens.tokens import LiveTokens, Tokens, UnpreparedTokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray

#: A block's segments, and its tokens with the first fault of each file.
Segments = tuple[int, ...]
Answer = tuple[Tokens, list[Fault]]


@dataclass(frozen=True)
class BlockMaker:
    """Makes the tokens of a whole block, in another process.

    Args:
        live: What makes them.
    """

    live: LiveTokens

    def __call__(self, segments: Segments) -> Answer:
        """The tokens of a block."""
        faults: dict[str, Fault] = {}

        def note(fault: Fault) -> None:
            faults.setdefault(fault.file, fault)

        return self.live.read(segments, note), list(faults.values())


class TokensAhead(UnpreparedTokens):
    """Tokens of blocks that processes make before they are asked for; a block is made by one of them alone.

    Args:
        live: What makes them.
        workers: How many processes; as many blocks are in memory besides the present one.
    """

    def __init__(self, live: LiveTokens, workers: int) -> None:
        self.live = live
        self._workers = workers
        self._processes: Processes[Segments, Answer] | None = None
        self._waiting: dict[Segments, Future[Answer]] = {}

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of text of each segment."""
        return self.live.sizes

    @property
    def reach(self) -> int:
        """How many blocks are made ahead."""
        return self._workers

    def read(self, segments: Sequence[int], on_fault: OnFault) -> Tokens:
        """The tokens of a block."""
        self.expect([segments, *self._waiting])
        tokens, faults = self._waiting.pop(tuple(segments)).result()
        for fault in faults:
            on_fault(fault)
        return tokens

    def expect(self, blocks: Sequence[Sequence[int]]) -> None:
        """Have these blocks made, and forget others that were made in vain, because the stream was asked elsewhere."""
        blocks_ahead = [tuple(block) for block in blocks]
        for block in [each for each in self._waiting if each not in blocks_ahead]:
            self._waiting.pop(block).cancel()
        if self._processes is None:
            self._processes = Processes(BlockMaker(self.live), self._workers)
            weakref.finalize(self, self._processes.close)
        for block in blocks_ahead:
            if block not in self._waiting:
                self._waiting[block] = self._processes.submit(block)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_processes": None, "_waiting": {}}
