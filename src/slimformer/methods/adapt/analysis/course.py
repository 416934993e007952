"""A base on its way to a task: pre-trained further, distilled from itself in rounds, fine-tuned and measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slimformer import finetune, models
from slimformer.errors import ConfigError, DataError
from slimformer.inference.evaluation import evaluate_on_task
from slimformer.methods.adapt.config import AdaptConfig
from slimformer.methods.adapt.method import Adapt
from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.method import RunOptions
from slimformer.methods.run import run_phase
from slimformer.methods.then import ThenOptions, tuning
from slimformer.models.autoencoder import as_vit, hides_patches
from slimformer.tasks import get_task
from slimformer.tasks.kinds.texts import texts_of_example
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from slimformer.methods.method import Phase
    from slimformer.methods.output import RunResult
    from slimformer.tasks import TaskData

FINE_TUNING, FURTHER, DISTILLED = "fine-tuning", "further pre-training", "self-distillation"
#: Settings that a course has of its own: its rounds are asked for one by one, and fine-tuning comes after each.
OF_COURSE = frozenset({"out", "rounds", *ThenOptions.model_fields})


@dataclass(frozen=True)
class Score:
    """What a fine-tuned model reached, and what it started from.

    Args:
        method: How it was pre-trained before.
        value: Steps, labels or rounds; where it stands in the figure.
        seed: Seed of all its runs.
        metric: What the score is.
        score: The task's own metric.
        fell: Part by which the loss on what was held out fell; None without pre-training.
        drift: How far pre-training moved the weights, as a share of how large they were.
    """

    method: str
    value: int
    seed: int
    metric: str
    score: float
    fell: float | None = None
    drift: float | None = None


@dataclass(frozen=True)
class Course:
    """A base on its way to a task: pre-trained further, distilled from itself in rounds, fine-tuned and measured.

    All that is trained stays in the folder, so that a course that was interrupted goes on.

    Args:
        config: Settings of `adapt`, with the task as `then_task` and `data`; its `rounds` do not count.
        folder: Where models go.
        split: Which split of the task is measured.
        tuning: More settings of fine-tuning, by their names in `FinetuneConfig`.
        quiet: Say nothing while training.
    """

    config: AdaptConfig
    folder: Path
    split: str = "dev"
    tuning: Mapping[str, Any] = field(default_factory=dict)
    quiet: bool = True

    def __post_init__(self) -> None:
        self.config.require("model", "corpus", "then_task", "data")
        self._tuning()  # what is wrong with it is said before anything is trained

    def score(self, rounds: int | None, value: int) -> Score:
        """Fine-tune and measure what a number of rounds leads to.

        Args:
            rounds: Rounds of self-distillation; 0 for further pre-training alone, None for the base as it is.
            value: Where the score stands in a figure.
        """
        trained = None if rounds is None else self.pretrained(rounds)
        measured = evaluate_on_task(self.tuned(rounds), TaskOptions(data=self.config.data), self.split)["metrics"]
        metric, score = next(iter(measured.items()))
        gained = {} if trained is None else _gained(trained.metrics)
        return Score(method_of(rounds), value, self.config.seed, metric, score, **gained)

    def tuned(self, rounds: int | None) -> str:
        """The folder of what a number of rounds leads to, fine-tuned.

        Args:
            rounds: Rounds of self-distillation; 0 for further pre-training alone, None for the base as it is.
        """
        start = self.config.model if rounds is None else str(self.pretrained(rounds).folder)
        assert start is not None
        name = "base" if rounds is None else f"round-{rounds}"
        out = str(self.folder / f"{name}-tuned")
        finetune(self._tuning(model=self._without_decoder(start, name), out=out), resume=True, quiet=self.quiet)
        return out

    def pretrained(self, rounds: int) -> RunResult:
        """The model after so many rounds; its head stays, for the next round needs it."""
        *before, last = self._phases(rounds)
        for phase in before:
            run_phase(phase, self._options)
        return run_phase(last, self._options)

    def origin(self) -> str:
        """What every round starts from: the base, with a head that was trained alone if it brought none."""
        phases = self._phases(0)
        trained = run_phase(phases[0], self._options).folder if len(phases) > 1 else self.config.model
        return str(trained)

    def with_steps(self, steps: int, folder: Path) -> Course:
        """The same from the same warmed head on, with other steps of pre-training.

        Args:
            steps: How many in each round.
            folder: Where its models go.
        """
        origin = self.origin()
        own = self.config.given()
        if origin != self.config.model:
            own.pop("head_steps", None)
        return replace(self, config=AdaptConfig.make({**own, "model": origin, "max_steps": steps}), folder=folder)

    @property
    def _options(self) -> RunOptions:
        return RunOptions(resume=True, quiet=self.quiet)

    def _phases(self, rounds: int) -> Sequence[Phase]:
        """What a run of one round more would train first."""
        shared = {name: value for name, value in self.config.given().items() if name not in OF_COURSE}
        config = AdaptConfig.make({**shared, "rounds": rounds + 1, "out": str(self.folder / "model")})
        return Adapt(config, self._options).phases()

    def _tuning(self, **places: str) -> FinetuneConfig:
        own = {name: value for name, value in tuning(self.config).given().items() if name not in ("model", "out")}
        return FinetuneConfig.make({**own, **self.tuning, **places})

    def _without_decoder(self, start: str, name: str) -> str:
        """The encoder alone of a masked autoencoder, which no head of a task goes on; any other model as it is."""
        config = models.load_config(start)
        if not hides_patches(config):
            return start
        folder = self.folder / f"{name}-encoder"
        as_vit(models.load_model(start, models.stored_class(config, start))).save_pretrained(folder)
        models.load_processor(start).save_pretrained(folder)
        return str(folder)


def method_of(rounds: int | None) -> str:
    """What pre-training in so many rounds is called."""
    names = {None: FINE_TUNING, 0: FURTHER, 1: DISTILLED}
    return names.get(rounds, f"{DISTILLED}, {rounds} rounds")


def write_unlabelled(config: AdaptConfig, count: int, folder: Path) -> Path:
    """Write so many training examples of the task to a corpus without labels: those that `limit` chooses.

    Args:
        config: Settings with a task.
        count: How many.
        folder: Where the corpus goes.
    """
    config.require("then_task", "data")
    assert config.then_task is not None
    if config.corpus is not None:
        raise ConfigError(
            f"`corpus` is {list(config.corpus)}, and here the task's own examples are pre-trained on; leave it out"
        )
    data = get_task(config.then_task).load(config.data, ("train",), limit=count)
    if len(data["train"]) < count:
        raise DataError(f"the task has {len(data['train']):,} training examples, and {count:,} are too many; give less")
    folder.mkdir(parents=True, exist_ok=True)
    return _write_images(data, folder / "images") if data.kind.modality == "images" else _write_texts(data, folder)


def _write_texts(data: TaskData, folder: Path) -> Path:
    lines = [" ".join(" ".join(texts_of_example(data.kind, example)).split()) for example in data["train"]]
    file = folder / "texts.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def _write_images(data: TaskData, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for number, example in enumerate(data["train"]):
        example["image"].open().save(folder / f"{number:06}.png")
    return folder


def _gained(metrics: Mapping[str, float]) -> dict[str, float]:
    return {"fell": 1 - metrics["reconstruction"] / metrics["reconstruction_before"], "drift": metrics["drift"]}
