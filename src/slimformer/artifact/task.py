"""What an artifact was made for, as its manifest records it, and whether the head of its model is for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.errors import ArtifactError, describe

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from slimformer.artifact.manifest import TaskRecord
    from slimformer.tasks.kinds.kind import Kind
    from slimformer.tasks.preset import Preset


def recorded_preset(task: TaskRecord) -> Preset | None:
    """The task of an artifact, if it is known here: somebody's own preset need not be."""
    from slimformer.tasks import get_task, known

    return get_task(task.name).preset if task.name in known() else None


def recorded_kind(task: TaskRecord) -> Kind:
    """What the model of an artifact has to do."""
    from slimformer.tasks.kinds import kind_of

    preset = recorded_preset(task)
    return kind_of(task.kind, preset.settings if preset is not None and preset.kind == task.kind else {})


def check_task(task: TaskRecord | None, config: PretrainedConfig) -> None:
    """Refuse an artifact whose head, by its config, was trained for something else than its manifest tells.

    A kind of task or a family that is not known here is taken as it is.

    Args:
        task: What the manifest tells; None where it tells nothing.
        config: The model's config.
    """
    from slimformer.anatomy import known as known_families
    from slimformer.models import is_causal
    from slimformer.tasks.columns import label_names
    from slimformer.tasks.kinds import is_kind

    if task is None or not is_kind(task.kind) or config.model_type not in known_families():
        return
    kind = recorded_kind(task).for_model(causal=is_causal(config))
    if not (kind.embeds or kind.pretraining or kind.head_fits(config, task.labels)):
        raise ArtifactError(
            f"by its manifest the artifact is for `{task.kind}` with the labels {describe(task.labels)}, by its "
            f"config it has {config.num_labels} outputs, {describe(label_names(config))} (problem type "
            f"`{config.problem_type}`); copy the artifact again"
        )
