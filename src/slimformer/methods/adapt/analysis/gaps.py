"""What each round leaves after fine-tuning: how far from the base, and how well for unseen data (arXiv 2210.02871)."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from slimformer.errors import ConfigError
from slimformer.inference.evaluation import prepare_split
from slimformer.methods.adapt.analysis.course import Course
from slimformer.methods.adapt.analysis.distance import weight_distance
from slimformer.methods.adapt.analysis.scores import changed, check_values, keeping
from slimformer.report import Figure, Finding, Series, curves
from slimformer.tasks import get_task
from slimformer.tasks.features import as_tensors
from slimformer.tasks.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.methods.adapt.config import AdaptConfig

#: Items in one forward.
BATCH = 32


@dataclass(frozen=True)
class Gap:
    """A model that was pre-trained in some rounds and fine-tuned.

    Args:
        rounds: Rounds of self-distillation; 0 for further pre-training alone, None for the base as it is.
        seed: Seed of all its runs.
        distance: L2 distance of its weights from the base, heads left out.
        train_loss: The task's loss on what it was fine-tuned on.
        loss: The same on the split that is measured.
    """

    rounds: int | None
    seed: int
    distance: float
    train_loss: float
    loss: float

    @property
    def gap(self) -> float:
        """The generalisation gap: by how much the loss is larger on data that were not seen."""
        return self.loss - self.train_loss


def gaps_by_rounds(
    config: AdaptConfig,
    rounds: int = 3,
    seeds: Sequence[int] = (0,),
    *,
    split: str = "dev",
    work: str | Path | None = None,
    quiet: bool = True,
    **tuning: Any,
) -> Finding[list[Gap]]:
    """Measure distance from the base and generalisation gap after fine-tuning each round (Fig. 5).

    Args:
        config: Settings of `adapt`, with a task.
        rounds: Rounds of self-distillation; round 0 is further pre-training.
        seeds: Seeds to average over.
        split: Which split is compared with the training data.
        work: A folder to keep models in; that of `scores_by_rounds` has them already.
        quiet: Say nothing while training.
        tuning: More settings of fine-tuning, by their names in `FinetuneConfig`.
    """
    check_values("rounds", [rounds])
    config.require("model", "then_task", "data")
    if get_task(str(config.then_task)).kind().embeds:
        raise ConfigError(f"`then_task` is `{config.then_task}`, which has no loss to compare; give one with labels")
    gaps = []
    with keeping(work) as folder:
        for seed in seeds:
            course = Course(changed(config, seed=seed), folder / f"seed-{seed}", split, tuning, quiet)
            for each in (None, *range(rounds + 1)):
                tuned = course.tuned(each)
                distance = weight_distance(str(config.model), tuned).total
                losses = [task_loss(tuned, config, name, tuning.get("limit")) for name in ("train", split)]
                gaps.append(Gap(each, seed, distance, *losses))
    return _picture(gaps)


def task_loss(model: str, config: AdaptConfig, split: str, limit: int | None = None) -> float:
    """The loss of a fine-tuned model on a split of the task, without dropout.

    Args:
        model: The artifact.
        config: Settings with the task's data.
        split: Which split.
        limit: How many of the training examples it was fine-tuned on; other splits are measured whole.
    """
    options = TaskOptions(data=config.data, limit=limit if split == "train" else None)
    ready = prepare_split(model, options, split)
    kind, collate = ready.data.kind, ready.data.kind.collator(ready.opened.processor)
    total = count = 0.0
    for start in range(0, len(ready.features), BATCH):
        batch = collate([ready.features[index] for index in range(start, min(start + BATCH, len(ready.features)))])
        with torch.inference_mode():
            loss = float(ready.model(**as_tensors(batch)).loss)
        total, count = total + loss * kind.items(batch), count + kind.items(batch)
    return total / max(1, count)


def _picture(gaps: Sequence[Gap]) -> Finding[list[Gap]]:
    """Distance and gap over rounds, the means over seeds."""
    rounds = sorted({gap.rounds for gap in gaps if gap.rounds is not None})

    def mean(name: str, number: int | None) -> float:
        return statistics.mean(float(getattr(gap, name)) for gap in gaps if gap.rounds == number)

    panels = [
        (label, [Series(label, [float(each) for each in rounds], [mean(name, each) for each in rounds])])
        for name, label in (("distance", "L2 distance from the base"), ("gap", "generalisation gap"))
    ]
    caption = f"Fine-tuning alone: distance {mean('distance', None):.4g}, gap {mean('gap', None):.4g}."
    return Finding(list(gaps), Figure("Distance and gap after each round", curves(panels, x_label="round"), caption))
