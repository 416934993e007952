"""Several models of one task as one voice: masks on one base, or fine-tuned copies (Table 2 of arXiv 2004.12406)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from slimformer.artifact import load, read_manifest
from slimformer.artifact.provenance import size, stored_tensors
from slimformer.bank import MaskBank
from slimformer.errors import ConfigError
from slimformer.methods.mask.measuring import Measure
from slimformer.tasks import get_task
from slimformer.tasks.columns import listed
from slimformer.tasks.kinds.answers import softmax
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from slimformer.artifact import TaskRecord

    Outputs = NDArray[Any] | tuple[NDArray[Any], ...]

How = Literal["labels", "logits", "probabilities"]


@dataclass(frozen=True)
class EnsembleResult:
    """What an ensemble reaches.

    Args:
        how: What the members' answers were combined by.
        metrics: Metrics of the ensemble on the split asked for.
        split: That split.
        members: The metric that counts of each member alone, on the same split.
        metric: The metric that counts.
        chosen_by: The metric that counts of each way to combine, on the split it was chosen on.
        bytes: What the members take together in memory; masks share their base.
    """

    how: How
    metrics: dict[str, float]
    split: str
    members: list[float]
    metric: str
    chosen_by: dict[How, float] = field(default_factory=dict)
    bytes: int = 0


def ensemble(
    folders: Sequence[str | Path],
    data: str | Path,
    *,
    how: How | None = None,
    choose_on: str = "dev",
    split: str = "dev",
    **options: Any,
) -> EnsembleResult:
    """Combine models of one task and measure them together; masks share one base in memory.

    Args:
        folders: The members: masks, fine-tuned models, or some of each.
        data: The task's data.
        how: What to combine: `labels` (a vote), `logits` or `probabilities` (means); the best one if not given.
        choose_on: The split on which the best one is chosen.
        split: The split on which the ensemble is measured.
        options: Fields of `TaskOptions`, where they differ from what the members were trained with.
    """
    if not folders:
        raise ConfigError("no mask was given; give the folders of masks or fine-tuned models of one task")
    _check_same_task(folders)
    task = TaskOptions.make({**options, "data": data})
    measures = {name: Measure.of(folders[0], task, name) for name in dict.fromkeys((choose_on, split))}
    members = Members(folders)
    outputs: dict[str, list[Outputs]] = {name: [] for name in measures}
    for model in members:
        for name, measure in measures.items():
            outputs[name].append(measure.outputs(model))
    if how not in (None, "logits") and not measures[split].data.kind.exclusive:
        raise ConfigError(
            f"`how` is `{how}`, and labels that do not exclude each other have only logits; give `logits`"
        )
    chosen_by = {} if how is not None else _scores(measures[choose_on], outputs[choose_on])
    sign = measures[choose_on].sign
    chosen: How = max(chosen_by, key=lambda way: sign * chosen_by[way]) if how is None else how
    measure = measures[split]
    return EnsembleResult(
        chosen,
        measure.score(combine(outputs[split], chosen)),
        split,
        [measure.score(each)[measure.metric] for each in outputs[split]],
        measure.metric,
        chosen_by,
        members.bytes,
    )


class Members:
    """The models of an ensemble, one after the other.

    Masks run on one base. Of other models there is one at a time in memory, and all are counted.

    Args:
        folders: Their artifacts.
    """

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.bank = MaskBank()
        self.folders = folders
        self.masks = [read_manifest(folder).model.storage == "mask" for folder in folders]
        self.copies = 0
        for number, folder in enumerate(folders):
            if self.masks[number]:
                self.bank.add(str(number), folder)

    def __iter__(self) -> Iterator[Any]:
        self.copies = 0
        for number, folder in enumerate(self.folders):
            if self.masks[number]:
                yield self.bank.use(str(number))
            else:
                model = load(folder).model
                self.copies += size(stored_tensors(model))
                yield model

    @property
    def bytes(self) -> int:
        """What all of them take together, once they were gone through."""
        memory = self.bank.memory()
        return self.copies + memory["base"] + memory["masks"] + memory["heads"]


def _check_same_task(folders: Sequence[str | Path]) -> None:
    """Refuse models whose answers mean different things."""
    first, *others = ((folder, read_manifest(folder).task) for folder in folders)
    for folder, task in others:
        if _meaning(task) != _meaning(first[1]):
            names = [f"`{of}` answers {_named(what)}" for of, what in (first, (folder, task))]
            raise ConfigError(f"{' and '.join(names)}; give models of one task")


def _meaning(task: TaskRecord | None) -> tuple[str, list[str]] | None:
    return None if task is None else (get_task(task.name).preset.kind, list(task.labels or []))


def _named(task: TaskRecord | None) -> str:
    labels = "" if task is None or not task.labels else f" with {listed(task.labels)}"
    return "no task" if task is None else f"`{task.name}`{labels}"


def _scores(measure: Measure, outputs: Sequence[Outputs]) -> dict[How, float]:
    found = ways(outputs[0]) if measure.data.kind.exclusive else ("logits",)
    return {way: measure.score(combine(outputs, way))[measure.metric] for way in found}


def ways(outputs: Outputs) -> tuple[How, ...]:
    """How outputs of this kind can be combined: single numbers have no labels and no probabilities to vote with."""
    everything: tuple[How, ...] = get_args(How)
    if isinstance(outputs, tuple):
        return everything[1:]  # a start and an end are not voted for one without the other
    return everything if outputs.ndim > 1 and outputs.shape[-1] > 1 else ("logits",)


def combine(members: Sequence[Outputs], how: How) -> Outputs:
    """Combine the outputs of several models into outputs of the same shape.

    A vote is decided by the number of members for a label, and where these are equal by the mean probability.
    """
    if isinstance(members[0], tuple):
        return tuple(_combine([member[part] for member in members], how) for part in range(len(members[0])))
    return _combine([np.asarray(member) for member in members], how)


def _combine(members: Sequence[NDArray[Any]], how: How) -> NDArray[Any]:
    stacked: NDArray[Any] = np.stack(members).astype(np.float64)
    if how == "logits":
        return np.asarray(stacked.mean(0))
    shares = softmax(stacked)
    if how == "probabilities":
        return np.asarray(shares.mean(0))
    votes = np.eye(stacked.shape[-1])[stacked.argmax(-1)]
    return np.asarray(votes.sum(0) + 0.5 * shares.mean(0))
