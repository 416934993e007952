"""Further pre-training with self-distillation (arXiv 2210.02871, algorithms 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from slimformer.errors import ConfigError
from slimformer.methods.adapt.config import AdaptConfig
from slimformer.methods.adapt.plan import Plan
from slimformer.methods.corpus import CacheOptions, open_cache, token_progress, training_options
from slimformer.methods.method import Method, Phase, Showcase
from slimformer.methods.output import RunResult
from slimformer.methods.run import counts_of, run_phase
from slimformer.methods.then import check_place, check_task, measured_in_corpus, tuning
from slimformer.registry import METHODS
from slimformer.train.folder import METHOD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from slimformer import artifact
    from slimformer.methods.adapt.images import Images
    from slimformer.methods.adapt.texts import Texts
    from slimformer.objectives import Weighted
    from slimformer.tasks.features import Inputs
    from slimformer.train import Trained


@dataclass(frozen=True)
class AdaptResult(RunResult):
    """What further pre-training made; its metrics are losses on held-out text before and after, and the drift.

    With new pieces the losses before are those of the model that has them already, and `tokens_per_word` says how many
    tokens a word of held-out text is split into then: losses of a token do not compare across vocabularies.

    Args:
        task: The result of fine-tuning it, if that was asked for.
    """

    task: RunResult | None = None

    @property
    def score(self) -> tuple[str, float] | None:
        """The score of the task it was fine-tuned on."""
        return None if self.task is None else self.task.score

    def summary(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {**super().summary(), "task": None if self.task is None else self.task.summary()}

    def lines(self) -> list[str]:
        """The result as a person reads it."""
        return [*super().lines(), *([] if self.task is None else self.task.lines())]


class Adapt(Method[AdaptConfig]):
    """Pre-train a model further on text or images of a domain, and distil it from itself so that it forgets less.

    First the base is pre-trained further. Then each round starts from the base again and learns the same while it
    keeps to the features of the round before. A head that the base does not have is trained alone before all that, and
    left behind in the end; new pieces come first of all. Each of these is a run of its own beside the result:
    `OUT.vocabulary`, `OUT.warmup`, `OUT.round-0`, ….

    Args:
        config: The settings; those given by name win over it.
        settings: Fields of `AdaptConfig` and of `RunOptions` (resume, overwrite, quiet, command).

    Example:
        >>> result = adapt(model="minilm", corpus=["papers.txt"], epochs=10, out="minilm-papers")
        >>> result.metrics["reconstruction"]
    """

    name = "adapt"
    config_class = AdaptConfig
    learns_from = "corpus"
    required = ("model", "corpus", "out")
    beside = frozenset(
        {
            "out",
            *CacheOptions.model_fields,
            *(each for each in AdaptConfig.model_fields if each.startswith("finetune_")),
        }
    )
    files = ("corpus.jsonl",)
    showcase = Showcase("MiniLM, adapted, fine-tuned", {"max_steps": 40, "head_steps": 30}, finetune={})

    terms: list[Weighted]
    #: The model that teaches; None where none does.
    teacher_model: PreTrainedModel | None
    #: What to measure on, by what the loss on it is called.
    held_out: dict[str, Sequence[Inputs]]
    #: Weights of the base, without any head, and what was measured before training.
    initial: dict[str, Tensor]
    before: dict[str, float]

    @property
    def base(self) -> str:
        """The checkpoint that is pre-trained further; with new pieces, the one that has them."""
        return self.plan.base

    def check(self) -> None:
        """Refuse a place for the fine-tuned model without one for this."""
        self.config.require("model", "corpus", *(["out"] if self.config.then_task is not None else []))

    def unscored(self) -> str | None:
        """Every rate would need rounds of its own."""
        return "each rate needs rounds of its own; run `adapt` once for each"

    @cached_property
    def inputs(self) -> Texts | Images:
        """What is learned from, as the model sees it."""
        return self._inputs(cast("str", self.config.model))

    def _inputs(self, name: str) -> Texts | Images:
        from slimformer.inference.door import look_up
        from slimformer.methods.adapt.images import Images
        from slimformer.methods.adapt.sentences import Sentences
        from slimformer.methods.adapt.texts import Texts
        from slimformer.models import sees_images

        source = look_up(name)
        source.require(self.accepts)
        of_text = Sentences if self.config.objective == "tsdae" else Texts
        return (Images if sees_images(source.config) else of_text)(self.config, source)

    @cached_property
    def plan(self) -> Plan:
        """The phases, and what the last round starts from and keeps to."""
        warm_up = self.config.trains == "all" and self.inputs.needs_warm_up
        return Plan(self.config, cast("str", self.config.model), self.options, warm_up, self.resources)

    def phases(self) -> Sequence[Phase]:
        """New pieces, a new head trained alone, then all rounds but the last; all data are read and checked before."""
        check_place(self.config, self.options)
        self._read()
        phases = self.plan.phases(self.name)
        for phase in phases:
            state: Method[Any] = METHODS.get(phase.method)(phase.config, self.options)
            self.plan.check(state.config, {METHOD: state.name, **state.training_settings}, state.files)
        if self.options.resume:
            self.plan.check_made_of(self.inputs.corpus.digest())
        return phases

    def _read(self) -> None:
        """Read and check all data."""
        from slimformer.inference.door import look_up
        from slimformer.inference.evaluation import load_split
        from slimformer.tasks import get_task
        from slimformer.tasks.options import TaskOptions

        config, inputs = self.config, self.inputs
        check_task(config, inputs.source.name, self.accepts)
        self.notes += measured_in_corpus(config)
        self.plan.check_settings(inputs.source)
        if config.trains == "head" and inputs.needs_warm_up and not config.keep_head:
            raise ConfigError("`trains` is `head`, and the head would be left behind; add `keep_head`")
        config.matching_terms(inputs.predictions, inputs.pooling)
        self._read_held_out()
        if config.teacher is not None:
            inputs.check_teacher(look_up(config.teacher))
        if config.similarity_data is not None:
            if not get_task(config.similarity_task).kind().embeds:
                raise ConfigError(
                    f"`similarity_task` is `{config.similarity_task}`, which compares no embeddings; give one such as "
                    "`stsb-similarity`"
                )
            load_split(inputs.source, TaskOptions(task=config.similarity_task, data=config.similarity_data), "dev")

    def _read_held_out(self) -> None:
        """Read what is measured on."""
        self.processor = self.inputs.processor
        self.held_out = {"reconstruction": self.inputs.held_out()}
        if self.config.general is not None:
            self.held_out["general"] = self.inputs.held_out(self.config.general)

    def start(self) -> str:
        """Load the models, and measure what is to change."""
        from slimformer.anatomy import Anatomy
        from slimformer.objectives import Models, build_terms
        from slimformer.objectives.terms.term import CLEAN, MASKED

        if self.base != self.inputs.source.name:
            self.inputs = self._inputs(self.base)  # what was checked so far is split into old pieces
            self._read_held_out()
        config, inputs = self.config, self.inputs
        digest = self.plan.digest(inputs.corpus.digest())
        self.model = inputs.model(self.plan.origin)
        self.model.to(accelerator() or self.model.device)  # type: ignore[arg-type]
        anatomy = Anatomy.of(self.model)
        whole = config.match == "predictions"
        teacher = self.plan.teacher
        self.teacher_model = None if teacher is None else inputs.model(teacher, whole=whole)
        specs = [
            replace(inputs.reconstruction, weight=config.reconstruction),
            *config.matching_terms(inputs.predictions, inputs.pooling),
        ]
        models = Models(anatomy, None if self.teacher_model is None else Anatomy.of(self.teacher_model))
        self.terms = build_terms(specs, models, variants=(CLEAN, MASKED))
        self.initial = {name: value.detach().clone() for name, value in inputs.base_weights(self.model).items()}
        self.before = self._measurements()
        return digest

    def resolved(self) -> dict[str, Any]:
        """What follows from the model and other settings."""
        config, resolved = self.config, {**super().resolved(), **self.inputs.resolved()}
        compared = config.distils and config.match == "features"
        positions = config.compared_positions(self.inputs.pooling) if compared else None
        return {**resolved, "rounds": config.own_rounds, "positions": positions}

    def train(self, folder: Path) -> Trained:
        """Learn to reconstruct what is hidden, and to keep to the teacher."""
        from slimformer.artifact import fingerprint
        from slimformer.methods.terms import freeze_unused
        from slimformer.objectives import RecordedStudent, Teacher, TermObjective
        from slimformer.train import train

        config, collate = self.config, self.inputs.collator()
        stream = self.inputs.stream(folder / "corpus.jsonl", token_progress(self.options.quiet))
        passes = config.epochs if config.max_steps is None else None
        options = training_options(config, passes, stream.expected_epoch)
        assert options.max_steps is not None
        features = self.inputs.features(stream.first(options.max_steps * options.batch_size))
        sources = {}
        if self.teacher_model is not None:
            teacher = self.teacher_model
            sources["teacher"] = Teacher(teacher, open_cache(config, self.terms, lambda: fingerprint(teacher)))
        objective = TermObjective(self.terms, self.model, sources)
        recorded = RecordedStudent(self.model, self.terms).train()
        if config.trains == "head":
            for weight in self.inputs.base_weights(self.model).values():
                weight.requires_grad_(False)
        freeze_unused(recorded, objective, collate([features[index] for index in range(min(2, len(features)))]))
        trained = train(recorded, options, features, collate, folder, objective=objective, quiet=self.options.quiet)
        self.model.requires_grad_(True)
        self.model.eval()
        return trained

    def finish(self) -> None:
        """Measure what has changed while the head is there, then take off one that the base did not have."""
        from slimformer.methods.adapt.measuring import drift, forgetting

        after = self._measurements()
        self.measured = {
            **after,
            **{f"{name}_before": value for name, value in self.before.items()},
            "drift": drift(self.initial, self.inputs.base_weights(self.model)),
            **self.plan.tokens_per_word(),
        }
        self.notes += forgetting(self.before, after)
        self.model = self.inputs.plain(self.model)

    def measure(self, trained: Trained) -> dict[str, float]:
        """Losses on held-out text before and after, and how far the weights have moved."""
        return self.measured

    def describe(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Losses, and how texts are pooled, which the base may not say."""
        return {**super().describe(metrics), "sentence": self.inputs.sentence}

    def result(self, folder: Path | None, metrics: dict[str, float], trained: Trained) -> AdaptResult:
        """What the caller gets."""
        return AdaptResult(**vars(super().result(folder, metrics, trained)))

    def reload(self, done: artifact.Loaded, folder: Path) -> AdaptResult:
        """The result of a run that had ended before."""
        metrics = dict(done.manifest.metrics["corpus"])
        return AdaptResult(done.model, done.processor, folder, metrics, **counts_of(done.manifest.steps[-1]))

    def follow_up(self, result: RunResult) -> RunResult:
        """Fine-tune the result if a task was given."""
        assert isinstance(result, AdaptResult)
        if self.config.then_task is None:
            return result
        return replace(result, task=run_phase(Phase("finetune", tuning(self.config)), self.options))

    def _measurements(self) -> dict[str, float]:
        """What is measured of the model as it is now, before and after training."""
        from slimformer.methods.adapt.measuring import reconstruction_losses, similarity

        config, inputs = self.config, self.inputs
        batch = max(1, config.batch_size // config.accumulation)
        losses = reconstruction_losses(self.model, self.terms[0], self.held_out, inputs.collator(), batch)
        if config.similarity_data is not None:
            losses["similarity"] = similarity(inputs, self.model, config.similarity_task, config.similarity_data)
        return losses


def accelerator() -> torch.device | None:
    """What the loop will train on, where that is not the processor."""
    import torch

    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
