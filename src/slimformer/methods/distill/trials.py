"""`--teacher-layer auto`: short trials of the teacher's blocks, and what they are judged by."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch

from slimformer.anatomy import Anatomy
from slimformer.artifact.staging import write_file
from slimformer.errors import ConfigError, TrainingError
from slimformer.files import JsonError, parse_json
from slimformer.methods.distill.learning import learn
from slimformer.methods.output import is_main
from slimformer.methods.run import show_notes
from slimformer.objectives.recording import Recorder, Request
from slimformer.tasks import get_task
from slimformer.tasks.metrics import regression_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel

    from slimformer.tasks import TaskData

    Array = np.ndarray[Any, Any]
    Probed = Literal["classes", "numbers"]
    Collate = Callable[[Any], dict[str, Any]]
    from collections.abc import Callable

    from slimformer.methods.distill.setup import Setup
    from slimformer.train import TrainingOptions


@torch.no_grad()
def embed(
    model: PreTrainedModel,
    items: Sequence[Any],
    collate: Collate,
    pooling: Sequence[str] = ("mean",),
    batch_size: int = 32,
) -> Array:
    """Pooled outputs of a base model for each item; labels among the inputs are left out."""
    was_training = model.training
    model.eval()
    name = f"pooled.{'+'.join(pooling)}"
    recorder = Recorder(model, Request.of((), (), name))
    device = next(model.parameters()).device
    vectors = []
    for start in range(0, len(items), batch_size):
        batch = collate([items[index] for index in range(start, min(start + batch_size, len(items)))])
        inputs = {name: value.to(device) for name, value in batch.items() if name != "labels"}
        vectors.append(recorder(inputs)[name].float().cpu().numpy())
    model.train(was_training)
    return np.concatenate(vectors)


def kept_similarity(teacher: Array, student: Array) -> float:
    """Rank correlation of all pairwise cosine similarities in the student's space with those in the teacher's.

    Args:
        teacher: Embeddings of some texts, [texts, width].
        student: The student's embeddings of the same texts.
    """
    upper = np.triu_indices(len(teacher), k=1)
    similarities = [(unit @ unit.T)[upper] for unit in map(_unit, (teacher, student))]
    return _spearman(*similarities)


def probe_labels(embeddings: dict[str, Array], labels: dict[str, Array], predicts: Probed) -> float:
    """Score of a linear model on embeddings: accuracy on dev for classes, rank correlation for numbers.

    Args:
        embeddings: Those of `train` and `dev`.
        labels: The labels of both.
        predicts: What the labels are.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = predicts == "numbers"
    model = make_pipeline(StandardScaler(), Ridge() if regression else LogisticRegression(max_iter=1000))
    model.fit(embeddings["train"], labels["train"])
    if regression:
        return _spearman(labels["dev"], model.predict(embeddings["dev"]))
    return float(model.score(embeddings["dev"], labels["dev"]))


def score_on_task(model: PreTrainedModel, data: TaskData, processor: Any, length: int | None, seed: int) -> float:
    """Score of a linear model on a base model's embeddings of a task's texts."""
    embeddings, labels = {}, {}
    for split in ("train", "dev"):
        features = data.prepare(split, processor, length, seed)
        items = [features[index] for index in range(len(features))]
        embeddings[split] = embed(model, items, data.collator(processor))
        labels[split] = np.array([item["labels"] for item in items])
    assert data.kind.linear_probe is not None
    return probe_labels(embeddings, labels, data.kind.linear_probe)


def _spearman(truth: Array, predicted: Array) -> float:
    return regression_metrics(truth, predicted, ("spearman",))["spearman"]


def _unit(vectors: Array) -> Array:
    unit: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


#: Texts or images whose similarities decide, and rows of a labelled task.
EXAMPLES, ROWS = 256, 1000
NOTE = "teacher_layer.json"
#: Where the paper found the best block of large teachers, as a share of the depth: the 21st of 24 for BERT.
UPPER_MIDDLE = 21 / 24
#: The 19th of 24 for RoBERTa and XLM-R.
UPPER_MIDDLE_OF = {"roberta": 19 / 24, "xlm-roberta": 19 / 24}
#: Blocks from which a teacher is large: such a one teaches its upper-middle block's relations, others their last's.
DEEP = 24


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
        latest = [Trial(layer, steps, attempt(layer, steps)) for layer in layers]
        trials += latest
        # Of equals the higher block wins: it has seen more.
        best = sorted(latest, key=lambda trial: (trial.score, trial.layer), reverse=True)
        layers = sorted(trial.layer for trial in best[: math.ceil(len(layers) / 2)])
        steps *= 2
    return trials


def winner(trials: list[Trial]) -> int:
    """The block that did best in the longest trials."""
    longest = max(trial.steps for trial in trials)
    last = [trial for trial in trials if trial.steps == longest]
    return max(last, key=lambda trial: (trial.score, trial.layer)).layer


def fixed_layer(setting: int | Literal["last", "upper-middle"] | None, teacher: Anatomy) -> int:
    """The number of the block a setting names; None for the paper's choice (arXiv 2012.15828, section 4.1)."""
    count = len(teacher.blocks)
    if setting is None:
        setting = "upper-middle" if count >= DEEP else "last"
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


def layer_without_trials(setup: Setup) -> int | None:
    """The teacher's block where settings say which; None for `auto`."""
    setting = setup.config.teacher_layer
    if setting is None and all(term.name != "relations" for term in setup.config.learned):
        setting = "last"  # the paper chose blocks for relations; its baselines learn from the last
    return None if setting == "auto" else fixed_layer(setting, Anatomy.of(setup.teacher))


def choose_layer(setup: Setup, options: TrainingOptions, folder: Path, quiet: bool) -> tuple[int, list[Trial]]:
    """The teacher's block to learn from, and the trials that led to it.

    Args:
        setup: Teacher, student and what is learned.
        options: How the run itself will train.
        folder: Where the choice is noted, so that a resumed run makes no other.
        quiet: Whether to say nothing.
    """
    teacher, layer = Anatomy.of(setup.teacher), layer_without_trials(setup)
    if layer is not None:
        return layer, []
    note = folder / NOTE
    if note.exists():
        trials = _read_trials(note)
        return winner(trials), trials
    score = scorer(setup)

    def attempt(layer: int, steps: int) -> float:
        unseen = {"tensorboard": None, "track": None}
        short = options.model_copy(update={"max_steps": steps, "save_every": steps + 1, **unseen})
        with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
            examples = setup.stream().first(steps * options.batch_size)
            student, _ = learn(setup, layer, short, examples, Path(scratch), quiet=True)
        reached = score(student)
        if not quiet:
            show_notes([f"tried block {layer} for {steps} steps: {reached:.4f}"])
        return reached

    trials = halve(list(range(len(teacher.blocks))), setup.config.probe_steps, attempt)
    if is_main():
        write_file(note, json.dumps([vars(trial) for trial in trials]).encode())
    return winner(trials), trials


def _read_trials(note: Path) -> list[Trial]:
    try:
        return [Trial(**entry) for entry in parse_json(note.read_bytes())]
    except (OSError, JsonError, TypeError) as error:
        raise TrainingError(f"`{note}` cannot be read: {error}; remove it to try the blocks again") from error


def scorer(setup: Setup) -> Callable[[PreTrainedModel], float]:
    """What a trial is judged by: labels where a task is given that a linear model can learn, else similarities."""
    config = setup.config
    if config.then_task is not None and get_task(config.then_task).kind().linear_probe is not None:
        data = get_task(config.then_task).load(config.data, ("train", "dev"), limit=ROWS)
        return lambda student: score_on_task(_base(student), data, setup.processor, config.finetune_length, config.seed)
    # Other texts than those the trials learn from first.
    stream = setup.stream(seed=config.seed + 1, pack=False)
    items: list[Any] = list(stream.first(EXAMPLES))
    reference = embed(_base(setup.teacher), items, stream.collator())
    return lambda student: kept_similarity(reference, embed(_base(student), items, stream.collator()))


def _base(model: PreTrainedModel) -> PreTrainedModel:
    """The model without a head it may have."""
    return cast("PreTrainedModel", Anatomy.of(model).base)
