"""Losses and metrics for those who watch from elsewhere: Transformers' own callbacks for trackers, made harmless."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from slimformer.errors import TrainingError, visible
from slimformer.files import as_path

if TYPE_CHECKING:
    from collections.abc import Sequence


def trackers(names: Sequence[str], folder: str | None) -> list[Any]:
    """A callback for each tracker; one that is not installed, or cannot write, is refused.

    Args:
        names: The trackers.
        folder: Where TensorBoard's event files go; given, they are written whether it is named or not.
    """
    several: list[Any] = [] if folder is None else [_tensorboard(folder)]
    return [*several, *(Tracked(name, _service(name)) for name in dict.fromkeys(names) if name != "tensorboard")]


class Tracked(TrainerCallback):
    """A tracker that ends no run once it has begun: what it fails at later is said once, and it is left out then.

    Each run is one of its own there, also where a process carries out several, as the phases of a method.

    Args:
        name: What it is called.
        inner: Transformers' callback for it.
    """

    def __init__(self, name: str, inner: Any) -> None:
        self.name = name
        self.inner = inner
        self._failed = False

    def on_train_begin(self, *arguments: Any, **more: Any) -> None:
        """Open a run; what fails here fails before anything was trained."""
        self.inner._initialized = False
        try:
            self.inner.on_train_begin(*arguments, **more)
        except Exception as error:
            raise TrainingError(
                f"`--track {self.name}` could not begin: {_reason(error)}; mend it, or leave it out"
            ) from error

    def on_log(self, *arguments: Any, **more: Any) -> None:
        """Send losses or metrics."""
        self._try("on_log", *arguments, **more)

    def on_save(self, *arguments: Any, **more: Any) -> None:
        """Send what the tracker wants of a checkpoint, by its own settings."""
        self._try("on_save", *arguments, **more)

    def on_train_end(self, *arguments: Any, **more: Any) -> None:
        """Close the run."""
        self._try("on_train_end", *arguments, **more)
        service = getattr(self.inner, "_wandb", None)  # which goes on with an open run otherwise
        if service is not None and service.run is not None and not self._failed:
            service.finish()

    def _try(self, event: str, *arguments: Any, **more: Any) -> None:
        if self._failed:
            return
        try:
            getattr(self.inner, event)(*arguments, **more)
        except Exception as error:
            self._failed = True
            sys.stderr.write(f"note: {self.name} gets nothing any more, training goes on: {_reason(error)}\n")


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return visible(lines[0] if lines else type(error).__name__)[:200]


def _service(name: str) -> Any:
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    if find_spec(name) is None:
        raise TrainingError(f"`--track {name}` needs the package `{name}`; run: pip install {name}")
    (callback,) = get_reporting_integration_callbacks([name])
    try:
        return callback()
    except (ImportError, RuntimeError, AttributeError) as error:
        raise TrainingError(
            f"`--track {name}` cannot use the package `{name}` as it is: {_reason(error)}; install it again"
        ) from error


def _tensorboard(folder: str) -> Any:
    """What writes event files into a folder."""
    from transformers.integrations.integration_utils import TensorBoardCallback

    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainingError("`--tensorboard` needs the package `tensorboard`; run: pip install tensorboard") from error
    try:
        return TensorBoardCallback(SummaryWriter(str(as_path(folder))))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TrainingError(
            f"`--tensorboard` is `{folder}`, which cannot be written: {reason}; choose another"
        ) from error
