"""What a run on a task starts from: a checkpoint, or new weights in a shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from slimformer import models
from slimformer.anatomy.family import known
from slimformer.artifact.manifest import read_manifest
from slimformer.artifact.publishing import is_hidden, same_name
from slimformer.errors import ConfigError
from slimformer.files import as_path
from slimformer.inference.evaluation import head_classes
from slimformer.inference.source import is_artifact
from slimformer.models.building import LEAST_TOKENS, Shape, build, name_tokens, open_config, resize, train_tokenizer
from slimformer.models.processors import has_file
from slimformer.models.sentence import SentenceSettings
from slimformer.tasks import get_task
from slimformer.tasks.columns import label_names
from slimformer.tasks.images import check_image_size
from slimformer.tasks.kinds import has_task_head
from slimformer.tasks.kinds.texts import texts_of_example
from slimformer.tasks.options import AnyOptions, with_recorded
from slimformer.views import restore_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.inference.source import Source
    from slimformer.tasks import Task, TaskData

#: The family of new models whose shape alone is given.
FAMILY = "llama"
#: Tokens of a new tokenizer.
VOCABULARY = 8192
#: Settings that say how data are read, of those that artifacts remember.
READING = (
    "text_column", "label_column", "header", "quoting", "shares", "label_separator", "language", "max_length",
)  # fmt: skip


class ScratchOptions(Shape):
    """New weights instead of a checkpoint's."""

    scratch: str | None = Field(
        None,
        description="Train new weights instead of `--model`: a family such as `llama` (the default where a shape is "
        "given) or `bert`, a JSON file with a Transformers config, or a model to be like; `--layers`, `--hidden`, "
        "`--heads` and `--ffn` replace its sizes.",
    )
    vocabulary: int | None = Field(
        None,
        ge=LEAST_TOKENS,
        le=2**24,
        description=f"Tokens of a BPE tokenizer that is learned from the training texts; by default {VOCABULARY}, or "
        "the tokenizer of the model that `--scratch` names.",
    )

    @property
    def shape(self) -> Shape:
        """The sizes alone."""
        return Shape.make({name: getattr(self, name) for name in Shape.model_fields})

    @property
    def is_new(self) -> bool:
        """Whether new weights are asked for, by name or by shape."""
        return any(getattr(self, name) is not None for name in ScratchOptions.model_fields)


class Origin(Protocol):
    """What a run starts from."""

    @property
    def config(self) -> PretrainedConfig:
        """What the model is built by."""

    def check(self, task: Task, accepted: Sequence[str]) -> None:
        """Refuse, before any work, a task that there is no head for, or weights stored in another way."""

    def sentence(self) -> SentenceSettings | None:
        """How outputs become one vector, where that is recorded."""

    def processor(self, data: TaskData) -> Any:
        """The tokenizer or image processor."""

    def model(self, data: TaskData, processor: Any, seed: int) -> tuple[PreTrainedModel, list[str]]:
        """The model with the head that fits, and notes on what became of a head that was there."""


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint or an artifact."""

    source: Source

    @property
    def config(self) -> PretrainedConfig:
        """The config of the checkpoint."""
        return self.source.config

    def check(self, task: Task, accepted: Sequence[str]) -> None:
        """Refuse a base that has no head for the task, or whose weights are stored in another way."""
        head_classes(self.source.name, self.source.config, task)
        self.source.require(accepted)

    def sentence(self) -> SentenceSettings | None:
        """How the checkpoint's outputs become one vector."""
        return SentenceSettings.of(self.source.name)

    def processor(self, data: TaskData) -> Any:
        """The tokenizer or image processor of the checkpoint."""
        return models.load_processor(self.source.name)

    def model(self, data: TaskData, processor: Any, seed: int) -> tuple[PreTrainedModel, list[str]]:
        """Load the base with the head that fits, and say what became of a head it had."""
        from transformers import set_seed

        name, foreign = self.source.name, _foreign_head(self.config, data)
        set_seed(seed)  # a new head is drawn here
        model = models.load_model(name, data.model_class(), new_head=foreign is not None, **data.config_kwargs())
        models.name_padding(model, processor)
        restore_output(model)
        if models.sees_images(self.config):
            check_image_size(processor, self.config, name)
        note = f"the head of `{name}` was made for {foreign}; a new one is trained"
        return model, [] if foreign is None else [note]


class Scratch:
    """New weights: a family or config, sizes, and a tokenizer learned from the training texts.

    Args:
        options: Which.
    """

    def __init__(self, options: ScratchOptions) -> None:
        self.options = options
        self.name = options.scratch or FAMILY
        self.config: PretrainedConfig = resize(open_config(self.name), options.shape)

    def check(self, task: Task, accepted: Sequence[str]) -> None:
        """Refuse a family that has no head for the task."""
        head_classes(self.name, self.config, task)
        if models.sees_images(self.config) and self.options.vocabulary is not None:
            raise ConfigError(f"`vocabulary` is {self.options.vocabulary}, and `{self.name}` sees images; leave it out")

    def sentence(self) -> SentenceSettings | None:
        """Nothing is recorded of new weights."""
        return None

    def processor(self, data: TaskData) -> Any:
        """A tokenizer learned from the training texts, or an image processor of the model's size."""
        if models.sees_images(self.config):
            return _image_processor(self.config)
        if self.options.vocabulary is None and self._has_tokenizer():
            return models.load_processor(self.name)
        return train_tokenizer(
            (text for example in data["train"] for text in texts_of_example(data.kind, example)),
            self.options.vocabulary or VOCABULARY,
            causal=models.is_causal(self.config),
            max_length=models.positions(self.config),
        )

    def _has_tokenizer(self) -> bool:
        """Whether the name is that of a model with a tokenizer, and neither a family nor the file of a config."""
        if self.name in known() or as_path(self.name).is_file():
            return False
        return has_file(self.name, "tokenizer_config.json")

    def model(self, data: TaskData, processor: Any, seed: int) -> tuple[PreTrainedModel, list[str]]:
        """Random weights under the head of the task."""
        config = self.config
        for name, value in data.config_kwargs().items():
            setattr(config, name, value)
        if not models.sees_images(config):
            name_tokens(config, processor)
        model = build(lambda: data.model_class().from_config(config), seed)
        models.name_padding(model, processor)
        return model, []


def _foreign_head(config: PretrainedConfig, data: TaskData) -> str | None:
    """What a base's head was trained for, if that is another task than this one; its outputs mean something else."""
    architecture, kind = (config.architectures or [""])[0], data.kind
    if kind.pretraining or kind.embeds or not has_task_head(architecture):
        return None
    if not kind.owns(architecture):
        return f"another kind of task (`{architecture}`)"
    if not kind.means_the_same(config):
        return f"another kind of task (problem type `{config.problem_type}`)"
    names = label_names(config)
    if data.labels is None or names is None or names == data.labels:
        return None
    return f"the labels {', '.join(f'`{name}`' for name in names[:5])}{', …' if len(names) > 5 else ''}"


def _image_processor(config: Any) -> Any:
    from transformers import ViTImageProcessor

    sides = config.image_size if isinstance(config.image_size, list | tuple) else (config.image_size,) * 2
    return ViTImageProcessor(size={"height": sides[0], "width": sides[1]})


def read_alike(base: str, options: AnyOptions) -> AnyOptions:
    """Options with what a base remembers of how data are read, where it was trained for that task on the same data.

    Args:
        base: The artifact a run starts from; others remember nothing.
        options: Task and data, and how they are read as far as that was told.
    """
    if options.task is None or options.data is None or not is_artifact(base):
        return options
    manifest = read_manifest(models.located(base))
    record = manifest.task
    data = next((step.config["data"] for step in reversed(manifest.steps) if step.config.get("data")), None)
    if record is None or record.name != get_task(options.task).name or not _same_place(data, options.data):
        return options
    return with_recorded(options, {name: value for name, value in record.settings.items() if name in READING})


def _same_place(one: Any, other: str) -> bool:
    if isinstance(one, str) and is_hidden(one):  # all that is known of a place on the machine that pushed the base
        return same_name(one, as_path(other).resolve())
    return isinstance(one, str) and (one == other or as_path(one).resolve() == as_path(other).resolve())
