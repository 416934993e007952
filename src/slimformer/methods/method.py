"""What a method is: one class, registered by one line, whose instance is the state of one run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from slimformer.corpus.options import TOKEN_SETTINGS
from slimformer.methods.output import RunResult
from slimformer.models.settings import STORES
from slimformer.tasks.options import StoreOptions
from slimformer.train.options import CARRIED_OUT, StepOptions
from slimformer.train.rates import RATE_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer import artifact
    from slimformer.artifact.storage.handler import Storage
    from slimformer.config import Config
    from slimformer.models.settings import Store
    from slimformer.train import Trained

AnyConfig = TypeVar("AnyConfig", bound="Config")


@dataclass(frozen=True)
class RunOptions:
    """What changes how a run goes and not what comes out; every method takes these by name.

    Args:
        resume: Go on with an unfinished run, or start one if there is none.
        overwrite: Replace a result that is there.
        quiet: Say nothing while training.
        command: The command line, for the record.
        trust_remote_code: Run code that a model brings or refers to.
        dry_run: Say what the run would do and cost, and write nothing.
        push_to_hub: Name on the Hub that the finished result is pushed to; None to keep it here.
    """

    resume: bool = False
    overwrite: bool = False
    quiet: bool = False
    command: str | None = None
    trust_remote_code: bool = False
    dry_run: bool = False
    push_to_hub: str | None = None


def configure(
    config_class: type[AnyConfig], config: AnyConfig | None, values: dict[str, Any]
) -> tuple[AnyConfig, RunOptions]:
    """The config and the run options a method was called with.

    Args:
        config_class: The method's config.
        config: Settings as a whole; those in `values` win over it.
        values: Fields of the config and of `RunOptions`, by name.
    """
    names = {field.name for field in fields(RunOptions)}
    options = RunOptions(**{name: value for name, value in values.items() if name in names})
    settings = {name: value for name, value in values.items() if name not in names}
    if config is None or settings:
        config = config_class.make({**(config.given() if config is not None else {}), **settings})
    return config, options


@dataclass(frozen=True)
class Phase:
    """A run that belongs to another one, such as fine-tuning the teacher first; its result is an artifact of its own.

    A phase is sealed by its artifact: resumed, a run goes on with the first phase that has none.

    Args:
        method: Name of the method in `registry.METHODS`.
        config: Its settings, `out` included.
        note: What the user is told before it starts; nothing when empty.
    """

    method: str
    config: Config
    note: str = ""


@dataclass(frozen=True)
class Showcase:
    """What `slimformer demo` shows of a method.

    Args:
        title: What the row is called.
        settings: Settings beside, or instead of, those that all rows of its sort share.
        start_from: The method of an earlier row whose result is the base; None for the demo's model.
        finetune: Settings of fine-tuning the result before it is measured; None to measure it as it is.
        sizes: Nested sizes that get a row each; none for one row of the whole.
    """

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    start_from: str | None = None
    finetune: Mapping[str, Any] | None = None
    sizes: tuple[str, ...] = ()


class Method(ABC, Generic[AnyConfig]):
    """One method. An instance is the state of one run, from its settings to what is saved.

    `slimformer.methods.run` calls the parts in the order in which they stand here.

    Args:
        config: The settings of the run.
        options: How the run is carried out.
    """

    #: Name in `registry.METHODS`: the command, the Python function and the entry in an artifact's chain of steps.
    name: ClassVar[str]
    #: The method's settings.
    config_class: ClassVar[type[Config]]
    #: The setting that names what it starts from.
    starts_from: ClassVar[str] = "model"
    #: What it learns from.
    learns_from: ClassVar[Literal["task", "corpus"] | None]
    #: Settings that a command line has to give.
    required: ClassVar[tuple[str, ...]]
    #: How what it starts from may be stored, and how its result is: one method may follow another that leaves
    #: what it accepts.
    accepts: ClassVar[tuple[str, ...]] = ("plain",)
    leaves: ClassVar[str] = "plain"
    #: Whether it takes steps of an optimizer; of a run, once it has started.
    trains: bool = True
    #: What the demo shows of it; None for nothing.
    showcase: ClassVar[Showcase | None] = None
    #: Settings that change nothing in the result, so that a run may be resumed with others.
    beside: ClassVar[frozenset[str]] = frozenset({"out"})
    #: Whether the result may take the place of what it started from, which is gone then: training on where it lies.
    replaces_base: ClassVar[bool] = False
    #: Names of files it writes into the folder it trains in, beside checkpoints; what has another name is not removed.
    files: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: AnyConfig, options: RunOptions) -> None:
        self.config = config
        self.options = options
        self.notes: list[str] = []
        #: Closed when the run is over, however it ends.
        self.resources = ExitStack()
        self.model: PreTrainedModel
        self.processor: Any = None

    @classmethod
    def for_settings(cls, config: Any) -> type[Method[Any]]:
        """The class that carries these settings out, where a method has several ways."""
        return cls

    @property
    def settings(self) -> dict[str, Any]:
        """What tells this run from others, as JSON types."""
        return self.config.model_dump(mode="json", exclude={*self.beside, *RATE_SETTINGS, *TOKEN_SETTINGS})

    @property
    def training_settings(self) -> dict[str, Any]:
        """Those of them that an unfinished run is resumed with alone.

        What a file is written as may change, and how a run is carried out; so may its length, if no step depends on it.
        """
        of_file = StoreOptions.model_fields if isinstance(self.config, StoreOptions) else ()
        longer = isinstance(self.config, StepOptions) and not self.config.plans_ahead
        others = {*of_file, *CARRIED_OUT, *(("max_steps", "epochs") if longer else ())}
        return {name: value for name, value in self.settings.items() if name not in others}

    @property
    @abstractmethod
    def base(self) -> str | None:
        """The checkpoint the result is recorded to start from; None for new weights."""

    def check(self) -> None:
        """Refuse impossible settings before anything is read."""
        self.config.require(*(name for name in self.required if name != "out"))

    def unscored(self) -> str | None:
        """Why results cannot be compared by a task's score, with what to do about it; None where they can."""
        return f"`{self.name}` measures no task"

    def phases(self) -> Sequence[Phase]:
        """Runs that come first."""
        return ()

    @abstractmethod
    def start(self) -> str:
        """Read and check models and data, the cheap things first; return a digest of what is learned from."""

    def resolved(self) -> dict[str, Any]:
        """Settings that task, model or machine decide where they are left open, as this run uses them.

        Asked once models and data are read; what is None here is not decided yet, or by nothing.
        """
        import torch

        stored = None if self.store is None else STORES[self.store]
        stored = stored or str(self.model.dtype if hasattr(self, "model") else torch.float32).removeprefix("torch.")
        names = {dtype: name for name, dtype in STORES.items()}
        return {"threads": torch.get_num_threads(), "store": names.get(stored)}

    def left_open(self) -> dict[str, Any]:
        """Those of them that were left open indeed."""
        names = {name for name in type(self.config).model_fields if getattr(self.config, name) is None}
        return {name: value for name, value in self.resolved().items() if name in names and value is not None}

    @abstractmethod
    def train(self, folder: Path) -> Trained:
        """Train `model` in place; checkpoints go into the folder."""

    @abstractmethod
    def finish(self) -> None:
        """Turn `model` into the one that is measured and saved, such as by baking its views."""

    @abstractmethod
    def measure(self, trained: Trained) -> dict[str, float]:
        """Metrics of the finished model."""

    @property
    def store(self) -> Store | None:
        """What the weights are stored as."""
        asked = self.config.store if isinstance(self.config, StoreOptions) else None
        return asked or self.store_unasked

    @property
    def store_unasked(self) -> Store | None:
        """What they are stored as unless asked for; None for as they are in memory."""
        return None

    def measure_rounded(self, metrics: dict[str, float]) -> dict[str, float] | None:
        """Metrics once the weights were rounded for the file; None where a finished model is not measured.

        Args:
            metrics: Those from before, of which not too much may be lost.
        """
        return None

    def describe(self, metrics: dict[str, float]) -> dict[str, Any]:
        """What the artifact is told beside model, step and base: metrics, task, sidecar; see `artifact.save`."""
        return {"metrics": {"corpus": metrics}}

    def found_out(self) -> dict[str, Any]:
        """What the step records beside its settings because it was found out on the way."""
        return {}

    def storage(self) -> str | Storage | None:
        """How the result is stored; by default packed where the model is, else plain."""
        return None

    def result(self, folder: Path | None, metrics: dict[str, float], trained: Trained) -> RunResult:
        """What the caller gets."""
        return RunResult(
            self.model,
            self.processor,
            folder,
            metrics,
            trained.steps,
            trained.kept_step,
            trained.seconds,
            trained.log,
            self.notes,
        )

    @abstractmethod
    def reload(self, done: artifact.Loaded, folder: Path) -> RunResult:
        """The result of a run that had ended before it was asked to resume."""

    def follow_up(self, result: RunResult) -> RunResult:
        """What comes after the result is saved, such as fine-tuning it on a task."""
        return result


def may_follow(method: type[Method[Any]], earlier: type[Method[Any]]) -> bool:
    """Whether a method can start from what another one leaves."""
    return earlier.leaves in method.accepts
