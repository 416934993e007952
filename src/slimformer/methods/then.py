"""A task that the result of a corpus is fine-tuned on afterwards, to measure it with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from slimformer.config import Config, Epochs, Positive, PositiveNumber
from slimformer.files import as_path
from slimformer.methods.finetune.config import FinetuneConfig
from slimformer.methods.origin import read_alike
from slimformer.methods.output import OutputDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimformer.methods.method import RunOptions

#: Why results of a corpus cannot be compared where no task comes after.
UNSCORED = "a corpus has no score on dev; give `--then-task` and `--data`"


class ThenOptions(Config):
    """What comes after training on a corpus; the result goes beside the other, under the name of the task."""

    then_task: str | None = Field(None, description="A task to fine-tune the result on and measure it with afterwards.")
    data: str | None = Field(None, description="A folder or file with the task's data, or a Hub data set name.")
    finetune_epochs: Epochs = Field(3.0, description="Passes over the task's data.")
    finetune_steps: Positive | None = Field(None, description="Steps on the task, however many passes that is.")
    finetune_batch_size: Positive = Field(32, description="Examples per step on the task.")
    finetune_lr: PositiveNumber = Field(1e-4, description="Peak learning rate on the task.")
    finetune_length: Positive | None = Field(
        None, description="Tokens of the task's texts; by default the task's own, or fewer where the model takes fewer."
    )

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.then_task is None) != (self.data is None):
            raise ValueError("`then_task` and `data` go together; give both or none")
        return self

    def idle_without_task(self) -> dict[str, tuple[bool, str]]:
        """Settings that change nothing unless a task comes after, and what they need."""
        names = (name for name in type(self).model_fields if name.startswith("finetune_"))
        return dict.fromkeys(names, (self.then_task is None, "`then_task`"))


def tuning(config: Any) -> FinetuneConfig:
    """Settings of the fine-tuning that comes after a run; data are read as what it starts from reads them."""
    settings = FinetuneConfig.make(
        {
            "model": config.out,
            "task": config.then_task,
            "data": config.data,
            "out": f"{config.out}-{config.then_task}",
            "store": config.store,
            "epochs": config.finetune_epochs,
            "max_steps": config.finetune_steps,
            "batch_size": config.finetune_batch_size,
            "lr": config.finetune_lr,
            "max_length": config.finetune_length,
            "seed": config.seed,
            "threads": config.threads,
        }
    )
    base: str | None = getattr(config, "model", None) or config.teacher
    return settings if base is None else read_alike(base, settings)


def check_place(config: Any, options: RunOptions) -> None:
    """Refuse a place for the fine-tuned model that is taken, before anything else is done."""
    if config.then_task is not None:
        tuned = OutputDirectory.of(tuning(config).out)
        tuned.check_apart(config)
        tuned.check({}, options)


def check_task(config: Any, base: str, accepts: Sequence[str]) -> None:
    """Refuse a task that could not be trained on or kept before days are spent on what comes before it."""
    from slimformer.inference.door import look_up
    from slimformer.methods.origin import Pretrained
    from slimformer.methods.task import check_trainable
    from slimformer.tasks import get_task
    from slimformer.tasks.options import load_data

    if config.then_task is not None:
        task = get_task(config.then_task)
        check_trainable(Pretrained(look_up(base)), task, accepts)
        load_data(tuning(config), ("train", "dev"))


def measured_in_corpus(config: Any) -> list[str]:
    """A note where what the task is measured on lies in the corpus, and so is learned from without its labels."""
    from slimformer.corpus.source import visible_files
    from slimformer.tasks.splits import split_in_name

    data = None if config.data is None else as_path(config.data).resolve()
    if data is None or not data.is_dir():
        return []
    measured = set()
    for place in (as_path(path).resolve() for path in config.corpus):
        files = visible_files(place) if place.is_dir() else [place]
        inside = [file.relative_to(data).parts for file in files if data in file.parents]
        measured |= {first for first, *_ in inside if split_in_name(first) in ("dev", "test")}
    if not measured:
        return []
    names = ", ".join(f"`{name}`" for name in sorted(measured)[:4])
    return [
        f"the corpus holds what task `{config.then_task}` is measured on ({names}), which is learned from too, without "
        "labels; give the files of the training split alone to leave it out"
    ]
