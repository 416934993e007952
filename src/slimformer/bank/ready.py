"""Masked weights of the tasks asked last, made once and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from slimformer.bank.sharing import Sealed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from slimformer.bank.tasks import BankTask


class ReadyWeights:
    """Models of tasks with masked weights of their own, those used longest ago first.

    Answers have the same bits whether a task is among them or not: its weights are the same numbers either way, and are
    multiplied by the same product.

    Args:
        tasks: The tasks there are by name; of one that was replaced or removed nothing is kept.
        lock: What guards `tasks`, and what is kept here.
    """

    def __init__(self, tasks: Mapping[str, Any], lock: threading.RLock) -> None:
        self._tasks = tasks
        self._lock = lock
        self._making = threading.Lock()
        self._kept: OrderedDict[str, tuple[BankTask, Sealed]] = OrderedDict()

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks that are ready, that used longest ago first."""
        with self._lock:
            return tuple(self._kept)

    @property
    def bytes(self) -> int:
        """What their weights take."""
        with self._lock:
            return sum(task.masked_bytes for task, _ in self._kept.values())

    def drop(self, name: str) -> None:
        """Let go of a task."""
        with self._lock:
            self._kept.pop(name, None)

    def take(self, asked: Mapping[str, BankTask], limit: int) -> dict[str, Sealed]:
        """The models of tasks that are asked together, as far as there is room for them.

        Those that are ready count as used now; for the others those make room that were used longest ago and are not
        asked. What has no room beside the others that are asked is left out, so that a call for more tasks than there
        is room for keeps those that it has instead of making all of them anew each time.

        Args:
            asked: The tasks by name.
            limit: Bytes that all weights kept may take.
        """
        with self._lock:
            self._make_room(limit, ())  # which may be less than it was
            taken = {name: sealed for name, task in asked.items() if (sealed := self._touch(name, task)) is not None}
            if all(name in taken or not self._has_room(task, asked, limit) for name, task in asked.items()):
                return taken
        with self._making:  # by one thread at a time: two would make the same weights in twice the memory
            for name, task in asked.items():
                sealed = taken.get(name) or self._make(name, task, asked, limit)
                if sealed is not None:
                    taken[name] = sealed
        return taken

    def _make(self, name: str, task: BankTask, asked: Collection[str], limit: int) -> Sealed | None:
        with self._lock:
            sealed = self._touch(name, task)  # another thread may have been faster
            if sealed is not None or self._tasks.get(name) is not task or not self._has_room(task, asked, limit):
                return sealed
            self._make_room(limit - task.masked_bytes, asked)
        sealed = Sealed(task.materialise())
        with self._lock:
            if self._tasks.get(name) is task:
                self._kept[name] = task, sealed
        return sealed

    def _touch(self, name: str, task: BankTask) -> Sealed | None:
        """The model of a task where it is ready, which is then the one used last."""
        kept, sealed = self._kept.get(name, (None, None))
        if kept is not task:
            return None
        self._kept.move_to_end(name)
        return sealed

    def _has_room(self, task: BankTask, asked: Collection[str], limit: int) -> bool:
        beside = sum(other.masked_bytes for name, (other, _) in self._kept.items() if name in asked)
        return 0 < task.masked_bytes <= limit - beside

    def _make_room(self, limit: int, asked: Collection[str]) -> None:
        for name in [name for name in self._kept if name not in asked]:
            if self.bytes <= limit:
                return
            del self._kept[name]
