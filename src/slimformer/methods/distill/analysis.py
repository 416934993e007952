"""Looking at a distillation: its losses, and what its settings do. Each function returns data with a picture."""

from __future__ import annotations

import platform
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slimformer import __version__, models
from slimformer.inference.bench import bench
from slimformer.methods.distill.method import Distill, DistillResult
from slimformer.methods.distill.setup import set_up
from slimformer.methods.distill.trials import scorer
from slimformer.methods.method import RunOptions
from slimformer.methods.output import losses_in
from slimformer.methods.run import run
from slimformer.report import Facts, Figure, Page, Series, Table, curves, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.methods.distill.config import DistillConfig
    from slimformer.methods.distill.trials import Trial

#: The relations of the paper's Table 7.
ABLATIONS = (("qq", "kk", "vv"), ("kk", "vv"), ("qq", "vv"), ("qq", "kk"), ("qk", "vv"))
#: The relation heads of its Table 8.
HEADS = (6, 12, 24, 48)


@dataclass(frozen=True)
class Sweep:
    """One setting, several values, and how good the student was with each.

    Args:
        setting: The setting.
        measure: What the score is.
        rows: For each value its score and losses.
    """

    setting: str
    measure: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def table(self) -> Table:
        """The scores as a table."""
        cells = [[row["value"], f"{row['score']:.4f}", f"{row['seconds']:.0f} s"] for row in self.rows]
        return Table(f"What {self.setting} does", [self.setting, self.measure, "training"], cells)

    def figure(self) -> Figure:
        """The scores as a line over the values, in their order."""
        numbers = [row["value"] for row in self.rows]
        x = [float(value) for value in numbers] if all(map(_is_number, numbers)) else list(range(len(numbers)))
        line = Series(self.measure, x, [row["score"] for row in self.rows])
        named = "" if x == numbers else "; ".join(f"{at:g}: {value}" for at, value in zip(x, numbers, strict=True))
        return Figure(f"What {self.setting} does", curves([(self.measure, [line])], x_label=self.setting), named)


def loss_curves(log: Sequence[dict[str, float]], title: str = "Losses") -> Figure:
    """The loss of each relation, or of whatever else was learned, over the steps of a run."""
    entries = [entry for entry in log if "loss" in entry]
    steps = [entry["step"] for entry in entries]
    names = [name for name in losses_in(entries[0]) if name != "loss"]
    parts = [Series(name, steps, [entry[name] for entry in entries]) for name in names]
    total = [Series("total", steps, [entry["loss"] for entry in entries])]
    return Figure(title, curves([("loss", total), ("its terms", parts)], x_label="optimizer step"))


def trial_scores(trials: Sequence[Trial]) -> Figure:
    """The scores of the teacher's blocks, one line for each round of trials."""
    lines = []
    for steps in sorted({trial.steps for trial in trials}):
        tried = [trial for trial in trials if trial.steps == steps]
        lines.append(Series(f"{steps} steps", [trial.layer for trial in tried], [trial.score for trial in tried]))
    return Figure("Blocks of the teacher, tried", curves([("score", lines)], x_label="block, from 0"))


def sweep_teacher_layers(config: DistillConfig, layers: Sequence[int] | None = None) -> Sweep:
    """Learn from each of the teacher's blocks (the paper's Figure 2)."""
    count = set_up(config).teacher.config.num_hidden_layers
    return _sweep(config, "teacher_layer", list(range(count)) if layers is None else layers)


def sweep_relation_heads(config: DistillConfig, heads: Sequence[int] = HEADS) -> Sweep:
    """Learn with different numbers of relation heads (Table 8)."""
    return _sweep(config, "relation_heads", heads)


def ablate_relations(config: DistillConfig, relations: Sequence[tuple[str, ...]] = ABLATIONS) -> Sweep:
    """Leave relations out (Table 7)."""
    return _sweep(config, "relations", relations)


def compare_sizes(models: dict[str, str | Path], batch: int = 1, length: int = 128, seconds: float = 2.0) -> Table:
    """Parameters, bytes and speed-up over the first model (Table 1).

    Args:
        models: Name → artifact, folder or alias; the first is what the others are compared with.
        batch: Texts per forward.
        length: Their tokens.
        seconds: Time to spend on each.
    """
    measured = {name: bench(str(model), [(batch, length)], seconds=seconds) for name, model in models.items()}
    first = next(iter(measured.values()))["latency_ms"]["p50"]
    rows = [
        [
            name,
            f"{cost['parameters'] / 1e6:.1f} M",
            f"{cost['bytes'] / 2**20:.1f} MiB",
            f"{cost['latency_ms']['p50']:.1f} ms",
            f"{first / cost['latency_ms']['p50']:.1f}x",
        ]
        for name, cost in measured.items()
    ]
    note = f"Median of {'one text' if batch == 1 else f'{batch} texts'} of {length} tokens."
    return Table("Size and speed", ["model", "parameters", "file", "latency", "speed-up"], rows, note)


def _sweep(config: DistillConfig, setting: str, values: Sequence[Any]) -> Sweep:
    """Distil once for each value; the score is the task's where one is given, else how similarities are kept."""
    measure = "kept similarity" if config.then_task is None else config.then_task
    sweep = Sweep(setting, measure)
    for value in values:
        with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
            changed = type(config).make({**config.given(), setting: value, "out": f"{scratch}/student"})
            result = run(Distill, changed, RunOptions(quiet=True))
            assert isinstance(result, DistillResult)
            score = (
                next(iter(result.task.metrics.values()))
                if result.task is not None
                else scorer(set_up(config))(result.model)
            )
        shown = "+".join(value) if isinstance(value, tuple) else value
        sweep.rows.append({"value": shown, "score": score, "losses": result.losses, "seconds": result.seconds})
    return sweep


def _real_length(config: DistillConfig, result: DistillResult) -> int:
    """Tokens of a text of the corpus, special ones included, as it comes to a model that is served: alone."""
    if models.sees_images(result.model.config):
        return 1
    assert config.corpus is not None
    corpus = config.open_texts()
    extent = corpus.estimate(result.processor)
    length = round(extent.tokens / max(extent.documents, 1)) + int(result.processor.num_special_tokens_to_add())
    most: int = models.positions(result.model.config) or length
    return max(1, min(length, most, config.max_length or most))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def write_report(config: DistillConfig, result: DistillResult) -> Path:
    """Write the page that the settings ask for, and return where it is."""
    import torch
    import transformers

    assert config.teacher is not None
    assert config.report is not None
    blocks: list[Table | Figure | Facts] = []
    if result.folder is not None:
        compared: dict[str, str | Path] = {"teacher": config.teacher, "student": result.folder}
        blocks.append(compare_sizes(compared, length=_real_length(config, result), seconds=1.0))
    if any("loss" in entry for entry in result.log):
        blocks.append(loss_curves(result.log))
    if result.trials:
        blocks.append(trial_scores(result.trials))
    if result.task is not None:
        metrics = [[name, f"{value:.4f}"] for name, value in result.task.metrics.items()]
        blocks.append(Table(f"Fine-tuned on {config.then_task}", ["metric", "dev"], metrics))
    given = {
        name: ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in config.given().items()
    }
    versions = f"slimformer {__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    made = {"steps": f"{result.steps}", "training": f"{result.seconds:.0f} s"}
    blocks.append(
        Facts("How it was made", {**given, **made, "versions": f"{versions}, Python {platform.python_version()}"})
    )
    lead = (
        f"A student with {result.model.num_parameters():,} parameters learned from block {result.teacher_layer} "
        f"of {config.teacher}."
    )
    return write_page(Page("Distillation", lead, blocks), config.report)
