"""The kinds of task, one file each; loaded when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.errors import DataError
from slimformer.registry import KINDS
from slimformer.tasks.kinds.kind import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PretrainedConfig


def kind_of(name: str, settings: Mapping[str, Any] | None = None) -> Kind:
    """The kind of that name, with a preset's settings."""
    kind: Kind = KINDS.get(name)(settings)
    return kind


def is_kind(name: str) -> bool:
    """Whether there is a kind of that name."""
    return name in KINDS


def kind_of_model(architecture: str, config: PretrainedConfig | None = None) -> Kind | None:
    """The kind that a model was trained for, as far as its class and config tell; None where they do not.

    Args:
        architecture: Name of its class.
        config: Its config; without it, the first kind with that head.
    """
    kinds = (KINDS.get(name).of_model(architecture, config) for name in KINDS)
    return next((kind for kind in kinds if kind is not None), None)


def has_task_head(architecture: str) -> bool:
    """Whether a class of Transformers has a head that was trained for one task, and not that of pretraining."""
    kinds = map(KINDS.get, KINDS)
    return any(kind.owns(architecture) for kind in kinds if not (kind.pretraining or kind.embeds))


def input_axes(architecture: str) -> tuple[str, ...]:
    """Axes of a model's inputs that may have any length, in order, by the name of its class.

    Example:
        >>> input_axes("BertForMultipleChoice")
        ('batch', 'choices', 'length')
    """
    kind = kind_of_model(architecture)
    return Kind.axes if kind is None else kind.axes


def pipeline_tag(architecture: str, kind: str | None = None) -> str | None:
    """What the Hub calls a model of a class that was made for a kind of task; None where there is no such name."""
    likely = kind_of_model(architecture)
    if kind is not None and kind in KINDS and KINDS.get(kind).owns(architecture):
        likely = KINDS.get(kind).of_model(architecture) or likely
    return None if likely is None else likely.pipeline_tag


def check_settings(kind: type[Kind], task: str, settings: Mapping[str, Any]) -> None:
    """Refuse what a task of this kind cannot be told."""
    for name, value in settings.items():
        if name not in kind.choices:
            raise DataError(f"task `{task}` has no {name}, but `{value}` was given; leave it out")
        values = kind.choices[name]
        if values is not None and value not in values:
            raise DataError(f"{name} `{value}` is not known; give {' or '.join(values)}")
