"""The base of a run: whether it fits the task, whether it is unharmed, and what becomes of its head."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.anatomy import family_of
from slimformer.artifact.layout import MANIFEST, MASK
from slimformer.artifact.loading import checked_manifest
from slimformer.errors import CheckpointError, ConfigError
from slimformer.tasks.kinds import kind_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.tasks import Task, TaskData

#: Kinds whose head is that of pretraining, which fits whatever the text is.
MODELLING = ("language-modelling", "last-word")
#: Kinds that measure the embeddings of a bare encoder.
EMBEDDING = ("retrieval", "similarity")
#: Heads that were trained for one task; their weights bear the same names in several of them.
TASK_HEADS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMultipleChoice",
    "ForQuestionAnswering",
    "ForImageClassification",
)


def is_artifact(name: str | Path) -> bool:
    """Whether a name is that of a folder which holds an artifact."""
    return (Path(name).expanduser() / MANIFEST).is_file()


def read_base(name: str) -> PretrainedConfig:
    """The config of a base; an artifact that was harmed since it was saved is refused."""
    if is_artifact(name):
        checked_manifest(Path(name).expanduser())
    return models.load_config(name)


def head_classes(name: str, config: PretrainedConfig, task: Task) -> tuple[str, ...]:
    """The classes that give a model of this family the head a task needs, most usual first; or an error."""
    import transformers

    kind, family = task.preset.kind, family_of(config.model_type)
    needed, found = ("images", "texts") if kind == "image-classification" else ("texts", "images")
    if (needed == "images") != hasattr(config, "patch_size"):
        raise CheckpointError(
            f"`{name}` is a model for {found} (`{family.name}`), and task `{task.name}` is about {needed}; "
            f"give a model for {needed}"
        )
    if kind == "last-word" and not family.causal:
        raise CheckpointError(
            f"`{name}` is an encoder (`{family.name}`), and task `{task.name}` needs a decoder; give a decoder"
        )
    auto = kind_of(kind, {"objective": "causal" if family.causal else "masked"}).head
    mapping = getattr(transformers, auto)._model_mapping
    if type(config) not in mapping:
        raise CheckpointError(
            f"`{name}` is a `{family.name}`, for which transformers has no `{auto}`, the head of task "
            f"`{task.name}`; give a model of another family"
        )
    classes: Any = mapping[type(config)]
    return tuple(each.__name__ for each in (classes if isinstance(classes, tuple) else (classes,)))


def refuse_mask(name: str) -> None:
    """Refuse the folder of a mask where weights are needed."""
    if (Path(name).expanduser() / MASK).is_file():
        raise CheckpointError(
            f"`{name}` is a mask on a base and no checkpoint; merge the two first: slimformer merge {name} --out PLAIN"
        )


def check_trainable(name: str, config: PretrainedConfig, task: Task) -> None:
    """Refuse, before any work, a task that cannot be trained or that the base has no head for."""
    head_classes(name, config, task)
    refuse_mask(name)
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(
            f"`{name}` holds quantized weights, which are not trained on; give the float model it was made from"
        )
    if task.preset.kind in EMBEDDING:
        raise ConfigError(
            f"task `{task.name}` has no loss to train with: it measures the embeddings of a bare encoder; "
            "train on `classification`, or measure with `slimformer evaluate`"
        )


def load_base(
    base: str, config: PretrainedConfig, data: TaskData, processor: Any, seed: int
) -> tuple[PreTrainedModel, list[str]]:
    """Load the base with the head that fits, and say what became of a head it had."""
    from transformers import set_seed

    foreign = _foreign_head(config, data)
    set_seed(seed)  # a new head is drawn here
    model = models.load_model(base, data.model_class(), new_head=foreign is not None, **data.config_kwargs())
    name_padding(model, processor)
    return model, [] if foreign is None else [f"the head of `{base}` was made for {foreign}; a new one is trained"]


def name_padding(model: PreTrainedModel, processor: Any) -> None:
    """Tell a decoder's head, which looks for the last token that is not padding, what padding is."""
    if getattr(model.config, "pad_token_id", None) is None and hasattr(processor, "pad_token_id"):
        pad = processor.pad_token_id
        model.config.pad_token_id = processor.eos_token_id if pad is None else pad


def label_names(config: PretrainedConfig) -> list[str] | None:
    """The labels a config names in the order of the outputs; None where it has but Transformers' stand-ins."""
    names = [str(name) for _, name in sorted((config.id2label or {}).items())]
    return None if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names


def fitting_length(given: int | None, data: TaskData, processor: Any, config: PretrainedConfig) -> int | None:
    """Tokens to cut texts to: as given, else the task's own or what model and tokenizer can take."""
    positions = models.positions(config)
    if positions is None or data.kind == "image-classification":
        return given
    if given is not None and given > positions:
        raise ConfigError(
            f"`--max-length` is `{given}`, but the model has {positions} positions; give {positions} or less"
        )
    return given or min(data.preset.max_length, positions, getattr(processor, "model_max_length", positions))


def _foreign_head(config: PretrainedConfig, data: TaskData) -> str | None:
    """What a base's head was trained for, if that is another task than this one; its outputs mean something else."""
    architecture = (config.architectures or [""])[0]
    if data.kind in MODELLING or not architecture.endswith(TASK_HEADS):
        return None
    if not data.behaviour.head.endswith(architecture[architecture.rindex("For") :]):
        return f"another kind of task (`{architecture}`)"
    names = label_names(config)
    if data.labels is None or names is None or names == data.labels:
        return None
    return f"the labels {', '.join(f'`{name}`' for name in names[:5])}{', …' if len(names) > 5 else ''}"
