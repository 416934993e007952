"""Quantization of a finished model on unlabelled texts or images: nothing is learned of a task, and its head stays.

Formats of many levels are rounded with error compensation (arXiv 2210.17323), block after block. Of few levels too much
is lost that way, and the float model teaches the quantized one for some steps what its blocks give.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from slimformer.inference.door import look_up, open_model
from slimformer.methods.method import Method
from slimformer.methods.output import RunResult
from slimformer.methods.quantize.config import QuantizeConfig
from slimformer.methods.run import counts_of
from slimformer.train import Trained

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from slimformer import artifact
    from slimformer.inference.source import Source
    from slimformer.methods.quantize.post_training.unlabelled import Unlabelled
    from slimformer.views import QuantizedWeight

#: Examples that go through a block at once while it is calibrated.
BATCH = 16


@dataclass(frozen=True)
class PostTrainingResult(RunResult):
    """What post-training quantization made; its metrics compare it with the float model on examples held out."""

    def lines(self) -> list[str]:
        """The result as a person reads it."""
        agreement = self.metrics.get("agreement")
        alike = "" if agreement is None else f"; {100 * agreement:.2f} % of the predictions are the same"
        steps = f"{self.steps} steps in " if self.steps else ""
        return [
            f"hidden states differ from the float model's by {100 * self.metrics['error']:.3g} % of their squares"
            f"{alike} (held out, without labels)",
            f"quantized after {steps}{self.seconds:.0f} s",
            f"saved in {self.folder}",
        ]


class PostTraining(Method[QuantizeConfig]):
    """`quantize --post-training`: a few hundred texts or images take the place of a task and its labels."""

    name = "quantize"
    config_class = QuantizeConfig
    learns_from = "corpus"
    required = ("model", "corpus", "out")
    leaves = "packed"
    files = ("corpus.jsonl",)

    source: Source
    corpus: Unlabelled
    #: Weights that were rounded without training.
    rounded: list[QuantizedWeight] | None = None

    @property
    def base(self) -> str:
        """The model that is quantized."""
        return cast("str", self.config.model)

    def start(self) -> str:
        """Read the model, and the examples it is calibrated and compared on."""
        from slimformer.methods.quantize.post_training.unlabelled import Unlabelled
        from slimformer.methods.quantize.student import check_quantizable

        self.trains = self.config.has_few_levels
        self.source = look_up(self.base)
        self.source.require(self.accepts)
        opened = open_model(self.source)
        self.model, self.processor = opened.model.float(), opened.processor
        check_quantizable(self.model, self.config)
        self.corpus = Unlabelled(self.config, self.source, self.processor)
        return self.corpus.digest()

    def resolved(self) -> dict[str, Any]:
        """What follows from other settings, and from the model."""
        config = self.config
        steps = {"max_steps": config.lessons.max_steps} if config.has_few_levels else {}
        return {**super().resolved(), **steps, "embedding": config.weights, "max_length": self.corpus.length}

    def train(self, folder: Path) -> Trained:
        """Quantize `model`, by rounding alone or with some steps of learning from its float self."""
        from slimformer.methods.quantize.post_training.comparing import Answers

        start = time.monotonic()
        self.answers = Answers.of(self.model, self.corpus.held_out())
        if self.config.has_few_levels:
            trained = self._learn(folder)
        else:
            trained = Trained([], 0, 0)
            self._round()
        return Trained(trained.log, trained.steps, trained.kept_step, time.monotonic() - start)

    def finish(self) -> None:
        """Make the model compute with codes, scales and small floats alone, just as they will lie in the file."""
        from slimformer.artifact.storage.packed import keep_quantized
        from slimformer.artifact.storage.quantizer import adopt
        from slimformer.views import bake, quantized_weights

        weights = self.rounded
        if weights is None:
            weights = quantized_weights(self.model)
            bake(self.model)
        keep_quantized(self.model, weights, small=self.config.packing == "small")
        adopt(self.model)
        self.model.eval()

    def measure(self, trained: Trained) -> dict[str, float]:
        """How far the quantized model is from the float one on examples that neither was calibrated on."""
        return self.answers.compare(self.model)

    def describe(self, metrics: dict[str, float]) -> dict[str, Any]:
        """How far it is from the float model, the task that model was made for, and how it embeds sentences."""
        return {"metrics": {"corpus": metrics}, "task": self.source.task, "sentence": self.source.sentence()}

    def result(self, folder: Path | None, metrics: dict[str, float], trained: Trained) -> PostTrainingResult:
        """What the caller gets."""
        return PostTrainingResult(**vars(super().result(folder, metrics, trained)))

    def reload(self, done: artifact.Loaded, folder: Path) -> PostTrainingResult:
        """The result of a run that had ended before."""
        metrics = dict(done.manifest.metrics["corpus"])
        return PostTrainingResult(done.model, done.processor, folder, metrics, **counts_of(done.manifest.steps[-1]))

    def _round(self) -> None:
        """Round block after block."""
        from slimformer.methods.quantize.post_training.calibration import batches_of
        from slimformer.methods.quantize.post_training.rounding import round_model
        from slimformer.train.run import surroundings

        batches = batches_of(self.corpus.calibration(), BATCH)
        with surroundings(self.config.threads):
            self.rounded = round_model(self.model, batches, self.config, self.base)

    def _learn(self, folder: Path) -> Trained:
        """Let the quantized model learn from its float self."""
        from slimformer.methods.quantize.student import quantize_numbers, take_dropout, unlabelled_objective
        from slimformer.train import train

        config = self.config
        teacher: PreTrainedModel = copy.deepcopy(self.model)
        quantize_numbers(self.model, config)
        take_dropout(self.model)
        objective = unlabelled_objective(teacher, self.model)
        options = config.lessons
        assert options.max_steps is not None
        examples = self.corpus.training(options.max_steps * options.batch_size, folder)
        return train(
            self.model,
            options,
            examples,
            self.corpus.collator(),
            folder,
            objective=objective,
            quiet=self.options.quiet,
        )
