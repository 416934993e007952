"""One run, whatever the method: checks, phases, training, measuring, saving, in this order.

Settings, the output directory, models and data are checked before training, and nothing half written is left behind.
While a run is unfinished its checkpoints lie beside the result, in `OUT.training`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import artifact
from slimformer.artifact.layout import MANIFEST
from slimformer.errors import ConfigError, TrainingError
from slimformer.methods.method import RunOptions, configure
from slimformer.registry import METHODS
from slimformer.train import check_folder, checkpoints, prepare_folder, remove_folder

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slimformer.config import Config
    from slimformer.methods.method import Method, Phase, RunResult
    from slimformer.train import Trained


@dataclass(frozen=True)
class OutputDirectory:
    """Where the result of a run goes.

    Args:
        path: The folder of the result; None to keep it in memory and work in a temporary folder.
    """

    path: Path | None

    @classmethod
    def of(cls, out: str | None) -> OutputDirectory:
        """The directory that `--out` names."""
        if out is None:
            return cls(None)
        path = Path(out).expanduser()
        if path.name in ("", ".."):
            raise ConfigError(f"`--out` is `{out}`, which names no folder of its own; give a new folder")
        return cls(path)

    def check(self, settings: dict[str, Any], options: RunOptions) -> None:
        """Refuse, before any work, a place that is taken or cannot be written; nothing is left there.

        Of several processes the one that writes looks; the others might see what it has begun by then.
        """
        if self.path is None or not is_main():
            return
        check_writable(self.path, "--out")
        check_folder(_training(self.path), settings, options.resume)
        if _training(self.path).is_dir():
            with _held(_training(self.path)):
                pass
        if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
            if not options.overwrite:
                raise TrainingError(f"`{self.path}` exists; choose another `--out`, or add `--overwrite` to replace it")
            if not (self.path / MANIFEST).is_file():
                raise TrainingError(f"`{self.path}` is no artifact, so it is not replaced; choose another `--out`")

    @contextmanager
    def working(self, settings: dict[str, Any]) -> Iterator[Path]:
        """A folder to train in, removed in the end; a run that failed keeps it if it can be resumed from there."""
        if self.path is None:
            with tempfile.TemporaryDirectory(prefix="slimformer-", ignore_cleanup_errors=True) as folder:
                yield Path(folder)
            return
        training = _training(self.path)
        if is_main():
            prepare_folder(training, settings)
        with _held(training) if is_main() else nullcontext():
            try:
                yield training
            except BaseException:
                if is_main() and checkpoints.latest(training) is None and not any(training.glob(f"{RATES}/*")):
                    remove_folder(training)
                raise
            self.clear()

    def finished(self, method: str, settings: dict[str, Any]) -> artifact.Loaded | None:
        """The artifact of a run that had ended before it was asked to resume, if it is this very run's.

        Args:
            method: Name of the method.
            settings: Its settings, without what is known only once the data are read.
        """
        if self.path is None or not (self.path / MANIFEST).exists():
            return None
        loaded = artifact.load(self.path)
        step = loaded.manifest.steps[-1]
        if step.method != method or any(step.config.get(name) != value for name, value in settings.items()):
            return None
        self.clear()
        return loaded

    def clear(self) -> None:
        """Remove what the run needed until it was done."""
        if self.path is not None and is_main():
            remove_folder(_training(self.path))


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return int(os.environ.get("RANK", "0")) == 0


def _training(out: Path) -> Path:
    return out.with_name(f"{out.name}.training")


@contextmanager
def _held(training: Path) -> Iterator[None]:
    """Keep other runs out of a folder; the system lets go of it however this process ends."""
    if fcntl is None:
        yield
        return
    handle = os.open(training, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise TrainingError(
            f"another run is at work in `{training}`; wait until it ends, or choose another `--out`"
        ) from error
    try:
        yield
    finally:
        os.close(handle)


def check_writable(path: Path, flag: str) -> None:
    """Make a folder where `path` will be, under the name its draft would have, and remove it again."""
    there = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        Path(tempfile.mkdtemp(prefix=f".{path.name}.tmp-", dir=there)).rmdir()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TrainingError(f"`{path}` cannot be written: {reason}; choose another `{flag}`") from error


#: Where the runs of a grid of learning rates lie in the folder of the whole run.
RATES = "rates"
#: What a run notes of itself beside its settings.
COUNTS = ("steps", "kept_step")


def run(method: type[Method[Any]], config: Config, options: RunOptions) -> RunResult:
    """Carry out one run of a method.

    Args:
        method: The method.
        config: Its settings.
        options: How to carry it out.
    """
    if getattr(config, "lr_grid", None) is not None:
        from slimformer.methods.grid import run_grid

        return run_grid(method, config, options)
    state = method(config, options)
    with state.resources:
        return state.follow_up(_run(state))


def _run(state: Method[Any]) -> RunResult:
    state.check()
    options, settings = state.options, state.settings
    output = OutputDirectory.of(getattr(state.config, "out", None))
    done = output.finished(state.name, settings) if options.resume else None
    if done is not None:
        assert output.path is not None
        return state.reload(done, output.path)
    output.check(settings, options)
    for phase in state.phases():
        run_phase(phase, options)
    settings = {**settings, "data_digest": state.start()}
    if not options.quiet:
        show_notes(state.notes)
    output.check(settings, options)
    with output.working(settings) as folder:
        trained = state.train(folder)
        state.finish()
        metrics = state.measure(trained)
        if output.path is not None and is_main():
            artifact.save(
                output.path,
                state.model,
                processor=state.processor,
                step=_step(state, settings, trained),
                base=state.base,
                storage=state.storage(),
                overwrite=options.overwrite,
                **state.describe(metrics),
            )
    wait_for_all()  # what comes next reads what one process wrote
    return state.result(output.path, metrics, trained)


def run_phase(phase: Phase, options: RunOptions) -> RunResult:
    """Carry out a run that belongs to another one; one that is sealed already is only read again."""
    if phase.note and not options.quiet:
        show_notes([phase.note])
    result = run(METHODS.get(phase.method), phase.config, options)
    wait_for_all()
    return result


def function_of(method: type[Method[Any]]) -> Callable[..., RunResult]:
    """The Python function of a method: its config as a whole, or settings and run options by name."""

    def call(config: Config | None = None, **settings: Any) -> RunResult:
        checked, options = configure(method.config_class, config, settings)
        return run(method, checked, options)

    call.__name__ = call.__qualname__ = method.name
    call.__doc__ = method.__doc__
    return call


def counts_of(step: artifact.Step) -> dict[str, Any]:
    """How many steps a run took and which step's weights it kept."""
    return {name: step.config[name] for name in COUNTS}


def show_notes(notes: list[str]) -> None:
    """Tell the user what was done to data or model that may not be expected."""
    for note in notes if is_main() else ():
        sys.stderr.write(f"note: {note}\n")


def _step(state: Method[Any], settings: dict[str, Any], trained: Trained) -> artifact.Step:
    """The entry of a run in the chain of steps."""
    counts = dict(zip(COUNTS, (trained.steps, trained.kept_step), strict=True))
    return artifact.Step(
        method=state.name,
        config={**settings, **state.found_out(), **counts},
        seed=getattr(state.config, "seed", None),
        duration_s=trained.seconds,
        command=state.options.command,
    )


def wait_for_all() -> None:
    """Let all processes see what one of them wrote."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
