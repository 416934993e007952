"""`--teacher-layer auto`: short trials tell which of the teacher's blocks to learn from."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from slimformer.anatomy import Anatomy
from slimformer.methods.distill.layers import Trial, fixed_layer, halve, winner
from slimformer.methods.distill.learning import learn
from slimformer.methods.distill.scoring import embed, kept_similarity, score_on_task
from slimformer.methods.place import is_main
from slimformer.methods.task_run import show_notes
from slimformer.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from slimformer.methods.distill.setup import Setup
    from slimformer.train import TrainingOptions

#: Texts or images whose similarities decide, and rows of a labelled task.
EXAMPLES, ROWS = 256, 1000
NOTE = "teacher_layer.json"


def choose_layer(setup: Setup, options: TrainingOptions, folder: Path, quiet: bool) -> tuple[int, list[Trial]]:
    """The teacher's block to learn from, and the trials that led to it.

    Args:
        setup: Teacher, student and what is learned.
        options: How the run itself will train.
        folder: Where the choice is noted, so that a resumed run makes no other.
        quiet: Whether to say nothing.
    """
    teacher = Anatomy.of(setup.teacher)
    setting = setup.config.teacher_layer
    if setting != "auto":
        return fixed_layer(setting, teacher), []
    note = folder / NOTE
    if note.exists():
        trials = [Trial(**entry) for entry in json.loads(note.read_text())]
        return winner(trials), trials
    score = scorer(setup)

    def attempt(layer: int, steps: int) -> float:
        short = options.model_copy(update={"max_steps": steps, "save_every": steps + 1, "tensorboard": None})
        with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
            examples = setup.stream().first(steps * options.batch_size)
            student, _ = learn(setup, layer, short, examples, Path(scratch), quiet=True)
        reached = score(student)
        if not quiet:
            show_notes([f"tried block {layer} for {steps} steps: {reached:.4f}"])
        return reached

    trials = halve(list(range(len(teacher.blocks))), setup.config.probe_steps, attempt)
    if is_main():
        draft = note.with_suffix(".tmp")
        draft.write_text(json.dumps([vars(trial) for trial in trials]))
        draft.rename(note)
    return winner(trials), trials


def scorer(setup: Setup) -> Callable[[PreTrainedModel], float]:
    """What a trial is judged by: labels where a task is given that a linear model can learn, else similarities."""
    config = setup.config
    if config.task is not None and get_task(config.task).kind().linear_probe is not None:
        data = get_task(config.task).load(config.data, ("train", "dev"), limit=ROWS)
        return lambda student: score_on_task(_base(student), data, setup.processor, config.finetune_length, config.seed)
    # Other texts than those the trials learn from first.
    stream = setup.stream(seed=config.seed + 1, pack=False)
    items: list[Any] = list(stream.first(EXAMPLES))
    theirs = embed(_base(setup.teacher), items, stream.collator())
    return lambda student: kept_similarity(theirs, embed(_base(student), items, stream.collator()))


def _base(model: PreTrainedModel) -> PreTrainedModel:
    """The model without a head it may have."""
    return cast("PreTrainedModel", Anatomy.of(model).base)
