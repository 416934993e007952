"""Distilling a teacher into a student on text or images without labels (arXiv 2012.15828)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from slimformer.artifact.ownership import check_outside
from slimformer.errors import ConfigError, UsageError
from slimformer.files import as_path
from slimformer.methods.corpus import CacheOptions, token_progress, training_options
from slimformer.methods.distill.config import SIZES, DistillConfig
from slimformer.methods.method import Method, Phase, Showcase
from slimformer.methods.output import OutputDirectory, RunResult, check_local, check_writable, describe_rate, is_main
from slimformer.methods.run import counts_of, run_phase
from slimformer.methods.then import UNSCORED, check_place, check_task, measured_in_corpus, tuning
from slimformer.report.page import check_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer import artifact
    from slimformer.methods.distill.setup import Setup
    from slimformer.methods.distill.trials import Trial
    from slimformer.train import Trained


@dataclass(frozen=True)
class DistillResult(RunResult):
    """What a distillation made; its metrics are the losses as last logged.

    Args:
        teacher_layer: The teacher's block that was learned from.
        trials: What `--teacher-layer auto` tried.
        task: The result of fine-tuning the student, if that was asked for.
    """

    teacher_layer: int = -1
    trials: list[Trial] = field(default_factory=list)
    task: RunResult | None = None

    @property
    def losses(self) -> dict[str, float]:
        """The losses as last logged."""
        return self.metrics

    @property
    def score(self) -> tuple[str, float] | None:
        """That of the task the student was fine-tuned on."""
        return None if self.task is None else self.task.score

    def summary(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            **super().summary(),
            "losses": self.losses,
            "teacher_layer": self.teacher_layer,
            "parameters": self.model.num_parameters(),
            "trials": [vars(trial) for trial in self.trials],
            "task": None if self.task is None else self.task.summary(),
        }

    def lines(self) -> list[str]:
        """The result as a person reads it."""
        losses = ", ".join(f"{name} {value:.4f}" for name, value in self.losses.items())
        return [
            f"learned from block {self.teacher_layer} of the teacher: {losses}",
            *(f"  tried {describe_rate(rate, score)}" for rate, score in self.rates.items()),
            *(f"  tried block {trial.layer} for {trial.steps} steps: {trial.score:.4f}" for trial in self.trials),
            f"{self.model.num_parameters():,} parameters after {self.steps} steps in {self.seconds:.0f} s",
            f"saved in {self.folder}",
            *([] if self.task is None else self.task.lines()),
        ]


class Distill(Method[DistillConfig]):
    """Distil a teacher into a student of any shape, on text or images without labels.

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `DistillConfig` and of `RunOptions` (resume, overwrite, quiet, command).

    Example:
        >>> result = distill(teacher="minilm", layers=3, hidden=192, corpus=["reviews.txt"], max_steps=1000)
        >>> result.losses["qq"]
    """

    name = "distill"
    config_class = DistillConfig
    starts_from = "teacher"
    learns_from = "corpus"
    required = ("teacher", "corpus", "out")
    beside = frozenset(
        {
            "out",
            "report",
            *CacheOptions.model_fields,
            *(each for each in DistillConfig.model_fields if "finetune_" in each),
        }
    )
    files = ("corpus.jsonl", "teacher_layer.json", "student_shape.json")
    # Short texts, few steps, and the teacher's own blocks to start from.
    showcase = Showcase(
        "3 x 192, distilled, fine-tuned",
        {"layers": 3, "hidden": 192, "heads": 12, "start": "spaced", "max_steps": 100, "lr": 1e-3},
        finetune={"lr": 3e-4},
    )

    setup: Setup
    layer: int
    trials: list[Trial]

    @property
    def base(self) -> str:
        """The teacher, or the checkpoint the student starts from."""
        return cast("str", self.config.teacher if self.config.student is None else self.config.student)

    def check(self) -> None:
        """Refuse a student without a size, and places that cannot be written."""
        config = self.config
        config.require("teacher", "corpus", *(["out"] if config.then_task is not None else []))
        if config.student is None and not config.has_budget and not any(getattr(config, name) for name in SIZES):
            raise UsageError(
                "the student would be as large as its teacher; give `--layers`, `--hidden`, …, a budget such as "
                "`--max-bytes 10MB`, or a checkpoint with `--student`"
            )
        if config.max_ms is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                "`--max-ms` is measured, and each process would measure something else; run it in one process first, "
                "and give the `--layers` and `--hidden` it takes"
            )
        if config.report is not None:
            check_local(config.report, "report")
            check_report(as_path(config.report), config.out)
            if config.then_task is not None:
                check_report(as_path(config.report), tuning(config).out)

    def unscored(self) -> str | None:
        """Losses of distillation say little about tasks; the student has to be fine-tuned on one."""
        return UNSCORED if self.config.then_task is None else None

    def phases(self) -> Sequence[Phase]:
        """None come first; a place that is taken for the one that comes last is refused now."""
        check_place(self.config, self.options)
        return ()

    def start(self) -> str:
        """Read both models and the corpus, and say how much is going to be learned from."""
        from slimformer.methods.distill.learning import describe_training
        from slimformer.methods.distill.setup import set_up

        check_task(self.config, cast("str", self.config.teacher), self.accepts)
        self.notes += measured_in_corpus(self.config)
        self.setup = set_up(self.config)
        self.processor = self.setup.processor
        self.notes += [*self.setup.notes(), describe_training(self.setup)]
        return self.setup.corpus.digest()

    def resolved(self) -> dict[str, Any]:
        """What teacher and student decide."""
        from slimformer.methods.distill.trials import layer_without_trials

        return {**super().resolved(), **self.setup.resolved, "teacher_layer": layer_without_trials(self.setup)}

    def train(self, folder: Path) -> Trained:
        """Choose the teacher's block and train a student on it."""
        from slimformer.methods.distill.learning import learn
        from slimformer.methods.distill.timing import keep_shape
        from slimformer.methods.distill.trials import choose_layer

        quiet = self.options.quiet
        self.setup = keep_shape(self.setup, folder)
        stream = self.setup.stream(memo=folder / "corpus.jsonl", progress=token_progress(quiet))
        options = training_options(self.config, self.config.passes, stream.expected_epoch)
        self.layer, self.trials = choose_layer(self.setup, options, folder, quiet)
        assert options.max_steps is not None
        examples = stream.first(options.max_steps * options.batch_size)
        self.model, trained = learn(self.setup, self.layer, options, examples, folder, quiet=quiet)
        return trained

    def finish(self) -> None:
        """Nothing: the student is a plain model."""

    def measure(self, trained: Trained) -> dict[str, float]:
        """The losses as last logged."""
        return RunResult(self.model, None, None, {}, log=trained.log).losses

    def describe(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Losses, and how a student that has learned to embed sentences pools."""
        embeds = any(term.name == "pooled" for term in self.config.learned)
        return {"metrics": {"corpus": metrics}, "sentence": self.setup.sentence if embeds else None}

    def found_out(self) -> dict[str, Any]:
        """The block that was learned from, the tokens of an example, and the shape that a budget led to."""
        proposal = self.setup.proposal
        shape = {} if proposal is None else {"chosen_shape": proposal.summary()}
        return {"chosen_layer": self.layer, "chosen_length": self.setup.length, **shape}

    def result(self, folder: Path | None, metrics: dict[str, float], trained: Trained) -> DistillResult:
        """What the caller gets."""
        made = super().result(folder, metrics, trained)
        return DistillResult(**vars(made), teacher_layer=self.layer, trials=self.trials)

    def reload(self, done: artifact.Loaded, folder: Path) -> DistillResult:
        """The result of a run that had ended before."""
        step = done.manifest.steps[-1]
        losses = dict(done.manifest.metrics["corpus"])
        layer = int(cast("int", step.config["chosen_layer"]))
        return DistillResult(done.model, done.processor, folder, losses, **counts_of(step), teacher_layer=layer)

    def follow_up(self, result: RunResult) -> RunResult:
        """Fine-tune the student if a task was given, and write the report."""
        assert isinstance(result, DistillResult)
        if self.config.then_task is not None:
            result = replace(result, task=run_phase(Phase("finetune", tuning(self.config)), self.options))
        if self.config.report is not None and is_main():
            from slimformer.methods.distill.analysis import write_report

            write_report(self.config, result)
        return result


def check_report(path: Path, out: str | None) -> None:
    """Refuse, before any work, a report that could not be written, or would lie among the files of the result."""
    if path.is_dir():
        raise ConfigError(f"`--report` is `{path}`, a folder; give a file such as `{path / 'report.html'}`")
    output = OutputDirectory.of(out)
    places = () if output.path is None else (output.path.resolve(), output.training.path.resolve())
    for place in places:
        if place in (path.resolve(), *path.resolve().parents):
            raise ConfigError(
                f"`--report` is `{path}`, inside the result `{place}`, which holds a model alone; put it beside"
            )
    check_outside(path)
    check_writable(path, "--report")
    check_page(path)
