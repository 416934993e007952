"""What a run made, where it goes, and where the run works until it is there."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import artifact
from slimformer.artifact.layout import MANIFEST
from slimformer.artifact.ownership import check_outside
from slimformer.artifact.staging import check_target, remove_leftovers, try_place
from slimformer.corpus.options import OFF
from slimformer.errors import ConfigError, TrainingError
from slimformer.files import as_path
from slimformer.train import TrainingFolder
from slimformer.train.folder import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from transformers import PreTrainedModel

    from slimformer.config import Config
    from slimformer.integrations.hub import Pushed
    from slimformer.methods.method import RunOptions


#: Settings that name what a run reads: what it learns from, and models.
READ = ("data", "corpus", "model", "teacher", "student")
#: Folders that a run fills beside its result.
WRITTEN = ("tensorboard", "teacher_cache", "token_cache")
#: How an address of a store elsewhere begins.
REMOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


#: What stands in a log entry beside losses.
BESIDE_LOSSES = ("epoch", "step", "grad_norm", "learning_rate")


def losses_in(entry: Mapping[str, float]) -> dict[str, float]:
    """The loss of a log entry and its terms."""
    return {name: value for name, value in entry.items() if name not in BESIDE_LOSSES}


@dataclass(frozen=True)
class RunResult:
    """What a run made.

    Args:
        model: The model, in eval mode.
        processor: Its tokenizer or image processor.
        folder: Where it was saved; None if it was not.
        metrics: Metrics of that very model.
        steps: Optimizer steps taken.
        kept_step: The step whose weights were kept.
        seconds: Time spent training.
        log: Log entries of the run.
        notes: What was done to data or model that a user should know.
        pushed: What is on the Hub of it; None where it was not pushed.
        rates: With `--lr-grid`, each learning rate and its score on dev; None where the loss became no number.
    """

    model: PreTrainedModel
    processor: Any
    folder: Path | None
    metrics: dict[str, float]
    steps: int = 0
    kept_step: int = 0
    seconds: float = 0.0
    log: list[dict[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rates: dict[str, float | None] = field(default_factory=dict)
    pushed: Pushed | None = None

    @property
    def score(self) -> tuple[str, float] | None:
        """The metric of a task that chooses between results, and its value; None where no task was measured."""
        return None

    def summary(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            "out": None if self.folder is None else str(self.folder),
            "metrics": self.metrics,
            "steps": self.steps,
            "kept_step": self.kept_step,
            "seconds": round(self.seconds, 2),
            "processes": int(os.environ.get("WORLD_SIZE", "1")),
            "notes": self.notes,
            **({"rates": self.rates} if self.rates else {}),
            **({} if self.pushed is None else {"hub": self.pushed.summary()}),
        }

    @property
    def losses(self) -> dict[str, float]:
        """The loss and its terms as last logged; empty for a run that was read again."""
        logged = [entry for entry in self.log if "loss" in entry]
        return losses_in(logged[-1]) if logged else {}

    def lines(self) -> list[str]:
        """The result as a person reads it."""
        kept = "" if self.kept_step == self.steps else f", weights of step {self.kept_step} kept"
        return [
            ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items()),
            f"{self.steps} steps in {self.seconds:.0f} s{kept}",
            *(f"  tried {describe_rate(rate, score)}" for rate, score in self.rates.items()),
            f"saved in {self.folder}",
            *([] if self.pushed is None else [self.pushed.line()]),
        ]


def describe_rate(rate: str, score: float | None) -> str:
    """A learning rate of a grid and what came of it, as a person reads it."""
    return f"learning rate {rate}: " + ("the loss became no number" if score is None else f"{score:.4f} on dev")


@dataclass(frozen=True)
class OutputDirectory:
    """Where the result of a run goes.

    Args:
        path: The folder of the result; None to keep it in memory and work in a temporary folder.
        files: Names of files that the method writes beside its checkpoints.
    """

    path: Path | None
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, out: str | None, files: tuple[str, ...] = ()) -> OutputDirectory:
        """The directory that `--out` names."""
        if out is None:
            return cls(None)
        path = as_path(out) if out else Path()
        if path.name in ("", ".."):
            raise ConfigError(f"`--out` is `{out}`, which names no folder of its own; give a new folder")
        check_local(out, "out")
        # What a link leads to is what is written, and checkpoints lie beside that.
        return cls(path.resolve() if path.is_symlink() and path.exists() else path, files)

    @property
    def training(self) -> TrainingFolder:
        """Where checkpoints lie while the run is unfinished."""
        assert self.path is not None
        return TrainingFolder(self.path.with_name(f"{self.path.name}{SUFFIX}"), self.files)

    def check(self, settings: dict[str, Any], options: RunOptions) -> None:
        """Refuse, before any work, a place that is taken or cannot be written; nothing is left there.

        Of several processes the one that writes looks; the others might see what it has begun by then.
        """
        if self.path is None or not is_main():
            return
        check_outside(self.path)
        check_writable(self.path, "--out")
        self.training.check_idle()
        self.training.check(settings, options.resume)
        self.check_free(options)

    def check_apart(self, config: Config, replaced: str | None = None) -> None:
        """Refuse to replace what the run reads, and to keep in the result what only the run needs.

        Args:
            config: The settings of the run.
            replaced: The setting that names what the result may take the place of; None for nothing.
        """
        _check_written(config)
        if self.path is None:
            return
        out = self.path.resolve()
        for name, path in _paths(config, (each for each in READ if each != replaced)):
            if path.exists() and path.resolve() == out:
                raise TrainingError(
                    f"`--out` is `{self.path}`, which `--{name}` names and the result does not replace; choose another"
                )
        for _, path in _paths(config, ("corpus",)):
            if path.is_dir() and path.resolve() in out.parents:
                raise TrainingError(
                    f"`--out` is `{self.path}`, inside the corpus `{path}`, whose files are all read; choose another"
                )
        for name, path in _paths(config, WRITTEN):
            places = (path.resolve(), *path.resolve().parents)
            for place, what in (
                (out, "the result"),
                (self.training.path.resolve(), "what the run removes in the end,"),
            ):
                if place in places:
                    flag = name.replace("_", "-")
                    raise TrainingError(f"`--{flag}` is `{path}`, inside {what} `{place.name}`; choose another")

    def check_free(self, options: RunOptions) -> None:
        """Refuse a place that is taken, unless it may be replaced."""
        if self.path is not None and is_main():
            check_target(self.path, options.overwrite)

    @contextmanager
    def working(self) -> Iterator[TrainingFolder]:
        """A folder to train in, removed in the end; a run that failed keeps it if it can be resumed from there."""
        if self.path is None:
            with tempfile.TemporaryDirectory(prefix="slimformer-", ignore_cleanup_errors=True) as folder:
                yield TrainingFolder(Path(folder))
            return
        if not is_main():
            yield self.training
            return
        training = self.training
        with training.claimed():
            begun = training.has_begun()
            try:
                yield training
            except BaseException:
                if not begun and not training.is_resumable():
                    training.remove()
                raise
            training.remove()

    def finished(self, method: str, settings: dict[str, Any]) -> artifact.Loaded | None:
        """The artifact of a run that had ended before it was asked to resume, if it is this very run's.

        Args:
            method: Name of the method.
            settings: Its settings, without what is known only once the data are read.
        """
        if self.path is None or not (self.path / MANIFEST).exists():
            return None
        step = artifact.read_manifest(self.path).steps[-1]
        recorded = {**step.config, **dict.fromkeys(step.left_open)}
        if step.method != method or any(recorded.get(name) != value for name, value in settings.items()):
            return None
        loaded = artifact.load(self.path)
        if is_main():
            self.training.clear()
            remove_leftovers(self.path)
        return loaded


def _paths(config: Config, names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for name in names:
        value = getattr(config, name, None)
        if name == "token_cache" and value == OFF:
            continue
        yield from ((name, as_path(each)) for each in ([value] if isinstance(value, str) else value or ()))


def check_local(name: str, setting: str) -> None:
    """Refuse the address of a store elsewhere: as a path it would be a folder here, `s3:`."""
    if REMOTE.match(name):
        flag = setting.replace("_", "-")
        raise ConfigError(f"`--{flag}` is `{name}`, and results are written on this machine alone; give a folder here")


def _check_written(config: Config) -> None:
    """Refuse folders that cannot be filled, or lie in an artifact, which would not be whole any more."""
    for name, path in _paths(config, WRITTEN):
        check_local(getattr(config, name), name)
        check_outside(path, itself=True)
        try:
            if is_main():
                try_place(path / "file")
        except OSError as error:
            flag, reason = name.replace("_", "-"), (error.strerror or str(error)).lower()
            raise TrainingError(f"`--{flag}` is `{path}`, which cannot be written: {reason}; choose another") from error


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return int(os.environ.get("RANK", "0")) == 0


def check_writable(path: Path, flag: str) -> None:
    """Refuse a place where nothing can be made."""
    try:
        try_place(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TrainingError(f"`{path}` cannot be written: {reason}; choose another `{flag}`") from error
