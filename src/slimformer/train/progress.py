"""When a run is measured and logged, and how it is going: a bar with the time left, or plain lines."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from slimformer.errors import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress


class Intervals(TrainerCallback):
    """Log and save as often as this run was told, which may have been told otherwise before it was interrupted."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the present settings in place of the checkpoint's."""
        state.compute_steps(args, state.max_steps)


class LogAtTheEnd(TrainerCallback):
    """Have the last step logged, wherever it falls."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for an entry after the last step."""
        if state.global_step >= state.max_steps:
            control.should_log = True


class BeforeStep(TrainerCallback):
    """Have something done before each optimizer step.

    Args:
        act: Called with the number of the step, from 0.
    """

    def __init__(self, act: Callable[[int], None]) -> None:
        self.act = act

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do it."""
        self.act(state.global_step)


class AfterStep(TrainerCallback):
    """Have something done after each optimizer step, before its weights are measured or written.

    Args:
        act: Called with the number of the step, from 0.
    """

    def __init__(self, act: Callable[[int], None]) -> None:
        self.act = act

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do it."""
        self.act(state.global_step - 1)


class EvaluateEpochs(TrainerCallback):
    """Have dev measured after each epoch and after the last step, before a checkpoint of the same step is written.

    The loop itself measures epochs after that, and a run killed in between would never measure that epoch.

    Args:
        steps: Optimizer steps of an epoch.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for an evaluation where an epoch ends."""
        if state.global_step % self.steps == 0 or state.global_step >= state.max_steps:
            control.should_evaluate = True


class ProgressLines(TrainerCallback):
    """One line on standard error for every log entry: step, time left, loss, and what else was logged."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note when and where the run starts."""
        self.start, self.first = time.monotonic(), state.global_step
        if state.is_world_process_zero and state.global_step:
            sys.stderr.write(f"resumed after step {state.global_step} of {state.max_steps}\n")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Write a line."""
        facts = _facts(logs or {})
        if state.is_world_process_zero and facts:
            left = _left(time.monotonic() - self.start, state.global_step - self.first, state)
            sys.stderr.write(f"step {state.global_step}/{state.max_steps}  {left} left  {facts}\n")


class ProgressBar(TrainerCallback):
    """A bar on the terminal, with the newest log entry behind it."""

    bar: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if state.is_world_process_zero:
            self.bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[facts]}", markup=False),
                console=Console(stderr=True),
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=state.max_steps, completed=state.global_step, facts="")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the bar."""
        if self.bar is not None:
            self.bar.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Put the newest figures behind the bar."""
        facts = _facts(logs or {})
        if self.bar is not None and facts:
            self.bar.update(self.task, facts=facts)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the bar away."""
        self.close()

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _facts(logs: dict[str, Any]) -> str:
    shown = {
        name.removeprefix("eval_"): value
        for name, value in logs.items()
        if isinstance(value, float | int)
        and name not in ("epoch", "grad_norm")
        and not name.startswith(("train_", "total_"))
    }
    return "  ".join(
        f"{visible(name)} {value:.3g}" if name == "learning_rate" else f"{visible(name)} {value:.4f}"
        for name, value in shown.items()
    )


def _left(elapsed: float, done: int, state: Any) -> str:
    seconds = int(elapsed / max(done, 1) * (state.max_steps - state.global_step))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
