"""Taking a few steps of a training run to see what all of them would cost; nothing is kept of them."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import nn

#: Steps that are timed, after one that allocates what all of them use.
TIMED = 3


class RehearsedError(Exception):
    """The loop of a run has been rehearsed, so the run ends here."""


@dataclass
class Rehearsal:
    """What the steps taken tell of a run.

    Args:
        folder: Where the run itself trains; loops elsewhere are trials on the way to it.
        total: Steps of the run.
        batch_size: Examples of a step.
        seconds: Time of each step taken.
        examples: Examples seen, and tokens in them that are no padding; none of images.
        tokens: Likewise.
        trials: Steps of loops on the way.
        parameters: Weights of the model, and those of them that are trained.
        trained: Likewise.
    """

    folder: Path
    total: int = 0
    batch_size: int = 0
    seconds: list[float] = field(default_factory=list)
    examples: int = 0
    tokens: int = 0
    trials: int = 0
    parameters: int = 0
    trained: int = 0

    @property
    def step_seconds(self) -> float:
        """Time of one step: the median of those after the first."""
        return median(self.seconds[1:] or self.seconds)

    @property
    def all_examples(self) -> int:
        """Examples of the whole run, an example as often as it is seen."""
        return self.total * self.batch_size

    @property
    def all_tokens(self) -> int:
        """Tokens of the whole run by the mean of those seen; 0 for images."""
        return round(self.all_examples * self.tokens / max(1, self.examples))

    def begin(self, model: nn.Module, folder: Path, total: int, batch_size: int) -> Rehearsal:
        """What to time a loop by: this where it is the run's own, else one that is thrown away."""
        if folder != self.folder:
            self.trials += total
            return Rehearsal(folder)
        weights = {id(each): each for each in model.parameters()}.values()
        self.total, self.batch_size = total, batch_size
        self.parameters = sum(each.numel() for each in weights)
        self.trained = sum(each.numel() for each in weights if each.requires_grad)
        return self

    def counted(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What makes a batch, and counts what is in it."""

        def collate_and_count(examples: Any) -> Any:
            batch = collate(examples)
            self.examples += len(examples)
            self.tokens += _tokens(batch)
            return batch

        return collate_and_count


_current: ContextVar[Rehearsal | None] = ContextVar("rehearsal", default=None)


def current_rehearsal() -> Rehearsal | None:
    """What is being rehearsed; None for a run in earnest."""
    return _current.get()


@contextmanager
def rehearsing(folder: Path) -> Iterator[Rehearsal]:
    """Let the loop that trains in a folder end after a few steps, and other loops with it."""
    rehearsal = Rehearsal(folder)
    token = _current.set(rehearsal)
    try:
        yield rehearsal
    except RehearsedError:
        pass
    finally:
        _current.reset(token)


class Stopwatch(TrainerCallback):
    """Times steps, and ends the loop after a few."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the watch, where the step before has not."""
        self.began = self.began or time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the time; fetching the next batch counts too."""
        now = time.perf_counter()
        self.rehearsal.seconds.append(now - self.began)
        self.began = now
        if state.global_step > TIMED:
            control.should_training_stop = True
        control.should_save = False


def peak_memory() -> int:
    """The most bytes that this process has taken, on the accelerator where there is one."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _tokens(batch: Mapping[str, Any]) -> int:
    mask, tokens = batch.get("attention_mask"), batch.get("input_ids")
    if mask is not None:
        return int(mask.sum())
    return 0 if tokens is None else int(tokens.numel())
