"""Students of random weights against the clock: which of them answers one text within some milliseconds here."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from slimformer.artifact.staging import write_file
from slimformer.errors import ConfigError, TrainingError
from slimformer.files import JsonError, parse_json
from slimformer.inference.bench import random_inputs
from slimformer.methods.distill.shaping import Proposal, too_small
from slimformer.methods.distill.student import build_student

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer.methods.distill.config import DistillConfig, StudentShape
    from slimformer.methods.distill.setup import Setup
    from slimformer.methods.distill.shaping import Ladder

#: Forwards of each student that count, and those before.
ROUNDS, WARM_UP = 15, 3
#: Where a run notes the shape it began with.
NOTE = "student_shape.json"


def choose_by_time(
    config: DistillConfig, ladder: Ladder, shapes: Sequence[StudentShape], length: int | None
) -> tuple[StudentShape, float]:
    """The largest of some shapes that is fast enough as measured, and its milliseconds.

    Args:
        config: The settings.
        ladder: What the shapes are of.
        shapes: From small to large.
        length: Tokens of the text; None for images.
    """
    with _threads(config.threads):
        return _climb(config, ladder, shapes, length)


def _climb(
    config: DistillConfig, ladder: Ladder, shapes: Sequence[StudentShape], length: int | None
) -> tuple[StudentShape, float]:
    """Halve the shapes until two neighbours are left; these take turns, as a machine may slow down for a while."""
    limit = config.max_ms
    assert limit is not None
    low, high = 0, len(shapes)
    while low < high:
        middle = (low + high) // 2
        if time_in_turns(ladder.teacher, [shapes[middle]], length)[0] <= limit:
            low = middle + 1
        else:
            high = middle
    if low == len(shapes) and not ladder.parts:
        own = time_in_turns(ladder.teacher, [ladder.own], length)[0]
        if own <= limit:
            raise ConfigError(
                f"`max_ms` is {limit:g}, and the teacher itself takes {own:.3f} here; give less, or take the teacher "
                "as it is"
            )
    first = max(0, low - 2)
    times = time_in_turns(ladder.teacher, shapes[first : low + 1], length)
    fast = [number for number, milliseconds in enumerate(times) if milliseconds <= limit]
    if fast:
        return shapes[first + fast[-1]], round(times[fast[-1]], 3)
    for shape in reversed(shapes[:first]):
        milliseconds = time_in_turns(ladder.teacher, [shape], length)[0]
        if milliseconds <= limit:
            return shape, round(milliseconds, 3)
    raise too_small(config, {"max_ms": round(times[0], 3)})


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def time_in_turns(teacher: PreTrainedModel, shapes: Sequence[StudentShape], length: int | None) -> list[float]:
    """Median milliseconds of one text, or one image, for students of random weights."""
    models: list[Any] = [
        build_student(teacher, shape.model_copy(update={"start": "random"})).eval() for shape in shapes
    ]
    inputs = [random_inputs(model, 1, length or 1) for model in models]
    taken: list[list[float]] = [[] for _ in models]
    for _ in range(WARM_UP + ROUNDS):
        for model, batch, times in zip(models, inputs, taken, strict=True):
            start = time.perf_counter()
            model(**batch)
            times.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(times[WARM_UP:]) for times in taken]


def keep_shape(setup: Setup, folder: Path) -> Setup:
    """The setup with the shape that the run began with: measured anew, a resumed run might have another one.

    Args:
        setup: The setup as measured now.
        folder: Where the run notes its shape.
    """
    note = folder / NOTE
    if setup.config.max_ms is None or setup.proposal is None:
        return setup
    if not note.exists():
        write_file(note, json.dumps(setup.proposal.summary()).encode())
        return setup
    try:
        proposal = Proposal.read(parse_json(note.read_bytes()))
    except (OSError, JsonError, AttributeError, TypeError, KeyError, ConfigError) as error:
        raise TrainingError(f"`{note}` cannot be read: {error}; start the run anew") from error
    return replace(setup, proposal=proposal, shape=proposal.shape)
