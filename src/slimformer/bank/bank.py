"""One base in memory, any number of tasks on it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from slimformer.artifact import merge
from slimformer.artifact.checks import architecture_of
from slimformer.artifact.layout import MASK
from slimformer.artifact.storage.mask_base import find_base
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.bank.native import NativeBase, NativeTask
from slimformer.bank.prediction import predict, run_in_torch
from slimformer.bank.ready import ReadyWeights
from slimformer.bank.sharing import SharedBase, apart
from slimformer.bank.tasks import BankTask
from slimformer.counts import check_count
from slimformer.errors import ArtifactError, ConfigError, DataError, describe
from slimformer.inference.door import look_up, open_model
from slimformer.inference.native import is_native, refuse_with_engine
from slimformer.models import located
from slimformer.models.settings import as_device

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from slimformer.artifact import Manifest


class MaskBank:
    """One base in memory and any number of masks on it.

    A task takes its packed bits and its head. Its masked weights are made on the fly, matrix by matrix while a batch
    runs, unless `memory_limit` leaves room for them: then whatever asks a task makes all of them once and keeps them,
    and those of the tasks asked longest ago make room. Answers have the same bits either way.

    With `engine="native"` the native engine answers: rows of all tasks share one product with each matrix of the base,
    and each task takes off the few per cent that it drops, kept as a byte for each. There is no padding, batches are of
    rows of like length whatever their tasks, and an answer has the same bits alone and in any batch. A packed base
    stays packed there; in torch its weights are floats, and activations are rounded as it rounds them.

    The bank may be used from several threads: `add` and `remove` take effect between two lookups, and a call that has
    its models goes on with them whatever happens to the bank meanwhile. A model that `use` returns shares the memory of
    the base, so it is for inference only, and its weights must not be changed in place: whatever is asked of the bank
    afterwards is refused. It may be cast, moved and saved: the base stays as it is, and what is saved are the masked
    weights.

    Args:
        base: The base: an alias, a folder or a Hub name; by default that of the first mask added.
        memory_limit: Bytes that masked weights may take beside the base; 0 to make them on the fly. A call that is
            under way holds on to those it began with.
        device: Where the base goes; the CPU when not given.
        cast_base: Whether the base may be that of the masks cast to 16 bits, which changes answers a little.
        check: Whether masks must answer as recorded at saving; their sums are compared in any case.
        engine: `native` for the native engine, which has no `memory_limit` and no `device`; torch when not given.

    Example:
        >>> bank = MaskBank("minilm")
        >>> bank.add("sentiment", "out/sst2")
        >>> bank.add("topic", "out/ag_news")
        >>> bank.predict({"sentiment": ["a fine film"], "topic": ["shares fell", "a late goal"]})
    """

    def __init__(
        self,
        base: str | Path | None = None,
        *,
        memory_limit: int = 0,
        device: str | torch.device | None = None,
        cast_base: bool = False,
        check: bool = True,
        engine: str | None = None,
    ) -> None:
        self._is_native = is_native(engine)
        if type(memory_limit) is not int or memory_limit < 0:
            raise ConfigError(f"`memory_limit` is `{describe(memory_limit)}`; give a number of bytes, 0 or more")
        if self._is_native:
            refuse_with_engine(memory_limit=memory_limit or None, device=device)
        self.memory_limit = memory_limit
        self.device = as_device(device)
        self.cast_base = cast_base
        self.check = check
        self.current: str | None = None
        self._tasks: dict[str, BankTask | NativeTask] = {}
        self._lock = threading.RLock()
        self._ready = ReadyWeights(self._tasks, self._lock)
        self._base: SharedBase | NativeBase | None = None
        if base is not None:
            self._load_base(base)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks there are."""
        with self._lock:
            return tuple(self._tasks)

    @property
    def ready(self) -> tuple[str, ...]:
        """Names of the tasks whose masked weights are kept, that asked longest ago first."""
        return self._ready.names

    def add(self, name: str, folder: str | Path, *, replace: bool = False) -> None:
        """Add the mask of a folder or of a Hub name under a name; a mask for another base is refused.

        Args:
            name: What the task is to be called.
            folder: The mask.
            replace: Whether it takes the place of a task of that name. That one answers until the new one is read and
                checked, and requests that are under way end as they began.
        """
        path = located(folder)
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a task of the bank is to be called `{describe(name)}`; give it a name")
        with self._lock:
            self._refuse_known(name, replace)
            if self._base is None:
                architecture_of(path)  # refused where its config names no class
                self._load_base(find_base(MaskFile.read(path / MASK), path, cast=self.cast_base))
        task = self._read(path)
        with self._lock:
            self._refuse_known(name, replace)  # another thread may have been faster
            self._tasks[name] = task
            self._ready.drop(name)

    def remove(self, name: str) -> None:
        """Take a task out; calls that are under way end as they began."""
        with self._lock:
            self._task(name)
            del self._tasks[name]
            self._ready.drop(name)
            if self.current == name:
                self.current = None

    def use(self, name: str) -> PreTrainedModel:
        """Make a task the current one and return its model, ready to run in torch."""
        with self._lock:
            task = self._task(name)
        if isinstance(task, NativeTask):
            assert isinstance(self._base, NativeBase)
            own: PreTrainedModel = apart(self._base.open(task.folder, check=self.check).lazy())
            with self._lock:
                self.current = name
            return own
        ready = self._ready.take({name: task}, self.memory_limit)
        # Another one for each caller, who may cast or move it.
        own = apart(ready[name].model if name in ready else task.lazy())
        with self._lock:
            self.current = name
        return own

    def predict(self, requests: Mapping[str, Sequence[Any]], batch_size: int = 32) -> dict[str, list[Any]]:
        """Answer questions to several tasks at once, mixed in batches.

        Args:
            requests: Task → its questions; the guide to `slimformer predict` says what they look like.
            batch_size: Rows per forward, over all tasks.

        Returns:
            Task → its answers in the order of the questions.
        """
        return self._answer(requests, batch_size, raw=False)

    def logits(self, requests: Mapping[str, Sequence[Any]], batch_size: int = 32) -> dict[str, list[Any]]:
        """What the heads give for questions to several tasks: an array for each, or a pair for start and end."""
        return self._answer(requests, batch_size, raw=True)

    def merge(self, name: str, out: str | Path, *, overwrite: bool = False) -> Manifest:
        """Write the model of a task as a plain checkpoint, or packed as the base is."""
        with self._lock:
            folder = self._task(name).folder
        return merge(folder, out, base=self.source, overwrite=overwrite, cast_base=self.cast_base, check=self.check)

    def memory(self) -> dict[str, int]:
        """Bytes held: `base`, the packed `masks` and `heads` of all tasks, and masked `weights` kept ready."""
        with self._lock:
            tasks = list(self._tasks.values())
            return {
                "base": 0 if self._base is None else self._base.bytes,
                "masks": sum(task.mask_bytes for task in tasks),
                "heads": sum(task.own_bytes for task in tasks),
                "weights": self._ready.bytes,
            }

    def _answer(self, requests: Mapping[str, Sequence[Any]], batch_size: int, *, raw: bool) -> dict[str, list[Any]]:
        check_count("batch-size", batch_size)
        if not isinstance(requests, Mapping):
            raise DataError(f"the requests are `{describe(requests)}`; give an object from a task to its requests")
        with self._lock:
            tasks: dict[str, Any] = {name: self._task(name) for name in requests}
        base = self._base
        if base is None:
            return {}
        if isinstance(base, NativeBase):
            return predict(tasks, requests, partial(base.run, tasks, batch_size=batch_size), raw=raw)
        kept = self._ready.take({name: tasks[name] for name, asked in requests.items() if asked}, self.memory_limit)
        ready = {name: sealed.model for name, sealed in kept.items()}
        return predict(tasks, requests, partial(run_in_torch, base, tasks, ready, batch_size=batch_size), raw=raw)

    def _read(self, path: Path) -> BankTask | NativeTask:
        base = self._base
        if isinstance(base, NativeBase):
            return base.read(path)
        assert base is not None
        return BankTask.read(path, base, self.source, self._processors, cast_base=self.cast_base, check=self.check)

    def _refuse_known(self, name: str, replace: bool) -> None:
        if name in self._tasks and not replace:
            raise ArtifactError(
                f"the bank has a task `{name}` already; remove it first, give another name, or `replace=True`"
            )

    def _task(self, name: str) -> BankTask | NativeTask:
        if not isinstance(name, str) or name not in self._tasks:
            known = ", ".join(f"`{each}`" for each in self._tasks) or "none"
            raise ArtifactError(f"the bank has no task `{describe(name)}`; it has {known}")
        return self._tasks[name]

    def _load_base(self, base: str | Path) -> None:
        source = look_up(base)
        source.require(("plain", "packed"))  # as of every mask's base
        self.source = str(base)
        self._processors: dict[str, Any] = {}
        if self._is_native:
            self._base = NativeBase(source, cast_base=self.cast_base, check=self.check)
        else:
            model: nn.Module = open_model(source, processor=False, dtype="float32", check=self.check).model
            self._base = SharedBase(cast("PreTrainedModel", model.to(self.device)))
