"""What adapting gains on a task, over its steps, labels and rounds (arXiv 2210.02871, Fig. 1, 3 and 4)."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slimformer.errors import ConfigError
from slimformer.files import as_path
from slimformer.methods.adapt.analysis.course import DISTILLED, Course, Score, write_unlabelled
from slimformer.methods.adapt.config import AdaptConfig
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def scores_by_steps(
    config: AdaptConfig,
    steps: Sequence[int],
    seeds: Sequence[int] = (0,),
    *,
    split: str = "dev",
    work: str | Path | None = None,
    quiet: bool = True,
    **tuning: Any,
) -> Finding[list[Score]]:
    """Fine-tune after more and more steps of pre-training (Fig. 1), each number of them a run with its own schedule.

    Args:
        config: Settings of `adapt`, with a task. With `rounds` 0 there is no line but further pre-training.
        steps: Numbers of steps.
        seeds: Seeds to average over.
        split: Which split of the task is measured.
        work: A folder to keep models in, so that what was interrupted goes on; by default a temporary one.
        quiet: Say nothing while training.
        tuning: More settings of fine-tuning, by their names in `FinetuneConfig`.
    """
    check_values("steps", steps)
    scores = []
    with keeping(work) as folder:
        for seed in seeds:
            first = Course(changed(config, seed=seed), folder / f"seed-{seed}", split, tuning, quiet)
            scores.append(first.score(None, 0))
            for count in steps:
                course = first.with_steps(count, first.folder / f"{count}-steps")
                scores += [course.score(rounds, count) for rounds in range(config.own_rounds + 1)]
    return picture(scores, "Steps of pre-training", "steps of pre-training", split)


def scores_by_labels(
    config: AdaptConfig,
    counts: Sequence[int],
    seeds: Sequence[int] = (0,),
    *,
    split: str = "dev",
    work: str | Path | None = None,
    quiet: bool = True,
    **tuning: Any,
) -> Finding[list[Score]]:
    """Fine-tune with more and more labels, after pre-training on the same examples without them (Fig. 3).

    Args:
        config: Settings of `adapt`, with a task and without a corpus.
        counts: Numbers of labels.
        seeds: Seeds to average over; all of them see the same examples.
        split: Which split of the task is measured, all of it.
        work: A folder to keep models in, so that what was interrupted goes on; by default a temporary one.
        quiet: Say nothing while training.
        tuning: More settings of fine-tuning, by their names in `FinetuneConfig`.
    """
    check_values("labels", counts)
    scores = []
    with keeping(work) as folder:
        corpora = {count: write_unlabelled(config, count, folder / f"{count}-labels") for count in counts}
        for count, corpus in corpora.items():
            for seed in seeds:
                on_these = changed(config, corpus=[str(corpus)], seed=seed)
                settings = {**tuning, "limit": count}
                course = Course(on_these, corpus.parent / f"seed-{seed}", split, settings, quiet)
                scores += [course.score(rounds, count) for rounds in (None, *range(config.own_rounds + 1))]
    return picture(scores, "Number of labels", "labels", split)


def scores_by_rounds(
    config: AdaptConfig,
    rounds: int = 3,
    seeds: Sequence[int] = (0,),
    *,
    split: str = "dev",
    work: str | Path | None = None,
    quiet: bool = True,
    **tuning: Any,
) -> Finding[list[Score]]:
    """Fine-tune after each round of self-distillation (Fig. 4); round 0 is further pre-training.

    Args:
        config: Settings of `adapt`, with a task.
        rounds: Rounds of self-distillation.
        seeds: Seeds to average over.
        split: Which split of the task is measured.
        work: A folder to keep models in, so that what was interrupted goes on; by default a temporary one.
        quiet: Say nothing while training.
        tuning: More settings of fine-tuning, by their names in `FinetuneConfig`.
    """
    check_values("rounds", [rounds])
    scores = []
    with keeping(work) as folder:
        for seed in seeds:
            course = Course(changed(config, seed=seed), folder / f"seed-{seed}", split, tuning, quiet)
            scores.append(course.score(None, 0))
            scores += [replace(course.score(each, each), method=DISTILLED) for each in range(rounds + 1)]
    return picture(scores, "Rounds of self-distillation", "round", split)


def picture(scores: Sequence[Score], title: str, x_label: str, split: str = "dev") -> Finding[list[Score]]:
    """Scores with a line for each method, the mean over seeds at each value."""
    lines = []
    for method in dict.fromkeys(score.method for score in scores):
        values = sorted({score.value for score in scores if score.method == method})
        means = [
            statistics.mean(score.score for score in scores if (score.method, score.value) == (method, value))
            for value in values
        ]
        lines.append(Series(method, values, means))
    seeds = sorted({score.seed for score in scores})
    caption = f"Mean over seeds {', '.join(map(str, seeds))}." if len(seeds) > 1 else f"Seed {seeds[0]}."
    svg = curves([(f"{scores[0].metric} on {split}", lines)], x_label=x_label)
    return Finding(list(scores), Figure(title, svg, caption))


def changed(config: AdaptConfig, **changes: Any) -> AdaptConfig:
    """The settings with some others."""
    return AdaptConfig.make({**config.given(), **changes})


def check_values(name: str, values: Sequence[int]) -> None:
    """Refuse no numbers, and numbers below 1."""
    if not values or min(values) < 1:
        raise ConfigError(f"`{name}` is {list(values)}; give one number or more, all at least 1")


@contextmanager
def keeping(work: str | Path | None) -> Iterator[Path]:
    """A folder to keep models in: the one that is given, or a temporary one."""
    if work is not None:
        yield as_path(work)
        return
    with tempfile.TemporaryDirectory(prefix="slimformer-") as folder:
        yield as_path(folder)
