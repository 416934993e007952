"""Which of the teacher's blocks is learned from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from slimformer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slimformer.anatomy import Anatomy

#: Where the paper found the best block of large teachers, as a share of the depth: the 21st of 24 for BERT.
UPPER_MIDDLE = 21 / 24
#: The 19th of 24 for RoBERTa and XLM-R.
UPPER_MIDDLE_OF = {"roberta": 19 / 24, "xlm-roberta": 19 / 24}


def fixed_layer(setting: int | Literal["last", "upper-middle"], teacher: Anatomy) -> int:
    """The number of the block a setting names."""
    count = len(teacher.blocks)
    if setting == "last":
        return count - 1
    if setting == "upper-middle":
        return max(0, round(count * UPPER_MIDDLE_OF.get(teacher.family.name, UPPER_MIDDLE)) - 1)
    if not -count <= setting < count:
        raise ConfigError(
            f"`teacher_layer` is {setting}, and the teacher has {count} blocks; give 0 to {count - 1}, `last`, "
            "`upper-middle` or `auto`"
        )
    return setting % count


@dataclass(frozen=True)
class Trial:
    """One block of the teacher, tried for some steps."""

    layer: int
    steps: int
    score: float


def halve(layers: list[int], steps: int, attempt: Callable[[int, int], float]) -> list[Trial]:
    """Successive halving: try all, keep the better half, try these twice as long, until one is left.

    Args:
        layers: Blocks to try.
        steps: Steps of the first round.
        attempt: Trains a student on a block for some steps and returns its score; more is better.

    Returns:
        Every trial in the order they ran; the best of the last round is the one to take.
    """
    trials: list[Trial] = []
    while len(layers) > 1:
        found = [Trial(layer, steps, attempt(layer, steps)) for layer in layers]
        trials += found
        # Of equals the higher block wins: it has seen more.
        best = sorted(found, key=lambda trial: (trial.score, trial.layer), reverse=True)
        layers = sorted(trial.layer for trial in best[: math.ceil(len(layers) / 2)])
        steps *= 2
    return trials


def winner(trials: list[Trial]) -> int:
    """The block that did best in the longest trials."""
    longest = max(trial.steps for trial in trials)
    last = [trial for trial in trials if trial.steps == longest]
    return max(last, key=lambda trial: (trial.score, trial.layer)).layer
