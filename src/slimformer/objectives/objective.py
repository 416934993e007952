"""An objective as a list of weighted terms: one forward of each model serves all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from slimformer.anatomy import Anatomy
from slimformer.anatomy.anatomy import unwrap
from slimformer.errors import ConfigError
from slimformer.models.autoencoder import hides_patches, patch_count
from slimformer.objectives.balance import EVERY, Progress, rebalance
from slimformer.objectives.loss import Loss
from slimformer.objectives.recording import Recorder, Request
from slimformer.objectives.terms.term import CLEAN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from slimformer.objectives.recording import Activations
    from slimformer.objectives.teacher import Source
    from slimformer.objectives.terms import Mean, Term

#: Under this name the examples of a batch are counted, whatever the terms count.
EXAMPLES = "examples"


@dataclass(frozen=True)
class Weighted:
    """A term of an objective: what it is called there, its weight, and the term itself."""

    label: str
    weight: float
    term: Term


class RecordedStudent(nn.Module):
    """A student together with the modules that are trained beside it; its forward gives what terms compare.

    As a module of its own it can be wrapped by distributed training like any other, although the model inside runs
    only as far as it is needed, or several times.

    Args:
        model: The student.
        terms: The terms of the objective, in order.
    """

    def __init__(self, model: nn.Module, terms: Sequence[Weighted]) -> None:
        super().__init__()
        self.model = model
        self.terms = tuple(terms)
        self.maps = nn.ModuleDict(
            {str(index): nn.ModuleDict(each.term.maps()) for index, each in enumerate(self.terms)}
        )
        self._recorders = Recorders(model, self.terms)

    def forward(
        self, batches: Mapping[str, dict[str, Any]], active: tuple[int, ...]
    ) -> dict[str, dict[str, dict[str, Tensor]]]:
        """Run the model on each variant of a batch.

        Args:
            batches: The inputs, by variant.
            active: Numbers of the terms that are computed.

        Returns:
            For each variant its activations under `""`, and what the modules of a term made of them under its number.
        """
        results = {}
        for variant, inputs in batches.items():
            activations = self._recorders(variant, active)(inputs)
            results[variant] = {"": activations}
            for index in active:
                term = self.terms[index].term
                if term.variant == variant:
                    results[variant][str(index)] = term.derive(activations, inputs, self.maps[str(index)])
        return results

    def gradient_checkpointing_enable(self, **settings: Any) -> None:
        """Let it be switched on as on the model itself."""
        cast("Any", self.model).gradient_checkpointing_enable(**settings)


class Recorders:
    """What runs the student for some of the terms, one recorder for each variant of the inputs."""

    def __init__(self, model: nn.Module, terms: Sequence[Weighted], *, read_scores: bool = False) -> None:
        self.model = model
        self.terms = terms
        self.read_scores = read_scores
        self._ready: dict[tuple[str, tuple[int, ...]], Recorder] = {}

    def __call__(self, variant: str, active: tuple[int, ...]) -> Recorder:
        """The recorder that serves the active terms of a variant."""
        key = variant, active
        if key not in self._ready:
            terms = [self.terms[index].term for index in active]
            request = union(term.student_request() for term in terms if term.variant == variant)
            self._ready[key] = Recorder(self.model, request, read_scores=self.read_scores)
        return self._ready[key]


class TermObjective:
    """A weighted sum of terms.

    What the terms are means over is counted for the whole batch first, so that its parts, over accumulation steps and
    processes, add up to the loss of the whole batch. Stages and balanced weights go by the step that `begin` names, as
    training does before each of them.

    Args:
        terms: The terms, in the order they are summed.
        student: The model that is trained, without wrappers; what is called may be a `RecordedStudent` around it.
        sources: Who teaches, by name.
        read_scores: Take scores from the attention itself; see `Recorder`.
        balanced: Labels of terms that are weighted by their gradients instead of by their weights.
        first_stage: Steps in which only the layers are learned from; predictions alone come after them. None for
            everything at once.

    Example:
        >>> models = Models(Anatomy.of(student), Anatomy.of(teacher), blocks=((2, 5),))
        >>> terms = build_terms(parse_terms("relations:1, logits:0.5"), models)
        >>> objective = TermObjective(terms, student, {"teacher": Teacher(teacher)})
        >>> objective(RecordedStudent(student, objective.terms), batch).total.backward()
    """

    def __init__(
        self,
        terms: Sequence[Weighted],
        student: nn.Module,
        sources: Mapping[str, Source],
        *,
        read_scores: bool = False,
        balanced: Sequence[str] = (),
        first_stage: int | None = None,
    ) -> None:
        self.terms = tuple(terms)
        self.sources = dict(sources)
        _check_sources(self.terms, self.sources)
        self.balanced = tuple(index for index, each in enumerate(self.terms) if each.label in balanced)
        self.first_stage = first_stage
        self._step = 0
        self._rebalanced = False
        anatomy = Anatomy.of(student)
        self.matrices = [weight for block in anatomy.blocks for weight in block.module.parameters() if weight.dim() > 1]
        self._patches = patch_count(anatomy.config) if hides_patches(anatomy.config) else 0
        self._recorders = Recorders(student, self.terms, read_scores=read_scores)
        self.progress = Progress.on(student, len(self.balanced)) if self.balanced else None

    def begin(self, step: int) -> None:
        """Let a step begin, counted from 0; its batch may come in several parts."""
        self._step, self._rebalanced = step, False

    def counts(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """What each term is a mean over in this batch, and the number of examples."""
        batches = variants(inputs)
        counted = {each.label: each.term.count(batches[each.term.variant]) for each in self.terms}
        return {EXAMPLES: len(next(iter(inputs.values()))), **counted}

    def __call__(self, model: nn.Module, inputs: Mapping[str, Any], totals: Mapping[str, float] | None = None) -> Loss:
        """Run teacher and student on a batch, and compare them.

        Args:
            model: The student, wrapped or not.
            inputs: The batch; `VARIANT.NAME` is the input of that name in a variant.
            totals: Items of the whole batch, as `counts` gives them, if this is a part of it. With several processes,
                the mean over these, as their gradients are averaged.
        """
        stage = 0 if self.first_stage is None else 1 if self._step < self.first_stage else 2
        active = tuple(index for index, each in enumerate(self.terms) if stage < 2 or each.term.stage == "predictions")
        needed = {self.terms[index].term.variant for index in active}
        batches = {variant: batch for variant, batch in variants(inputs).items() if variant in needed}
        if self._patches:
            self._hide_alike(batches, active)
        taught = self._ask(model, batches, active)
        learned = self._record(model, batches, active)
        means = {}
        for index in active:
            term = self.terms[index].term
            teacher = {} if term.source is None else taught[term.source, term.variant]
            student = {**learned[term.variant][""], **learned[term.variant].get(str(index), {})}
            means[index] = term.compare(teacher, student, batches[term.variant])
        weights = self._weights(stage, means)
        return self._sum(means, weights, totals, len(next(iter(inputs.values()))))

    def _hide_alike(self, batches: Mapping[str, dict[str, Any]], active: tuple[int, ...]) -> None:
        """A masked autoencoder draws which patches it hides; all models have to hide the same ones."""
        terms = [self.terms[index].term for index in active]
        for variant, batch in batches.items():
            whole = all(term.student_request().whole for term in terms if term.variant == variant)
            if not whole and "noise" not in batch:
                pixels = batch["pixel_values"]
                batch["noise"] = torch.rand(len(pixels), self._patches, device=pixels.device)

    def _ask(
        self, model: nn.Module, batches: Mapping[str, dict[str, Any]], active: tuple[int, ...]
    ) -> dict[tuple[str, str], Activations]:
        """What each source computes of each variant that a term wants of it."""
        requests: dict[tuple[str, str], Request] = {}
        for index in active:
            term = self.terms[index].term
            if term.source is not None:
                key = term.source, term.variant
                requests[key] = requests.get(key, Request()) | term.teacher_request()
        return {
            (source, variant): self.sources[source](model, batches[variant], request)
            for (source, variant), request in requests.items()
        }

    def _record(
        self, model: nn.Module, batches: Mapping[str, dict[str, Any]], active: tuple[int, ...]
    ) -> Mapping[str, Mapping[str, Activations]]:
        if isinstance(unwrap(model), RecordedStudent):
            return cast("Mapping[str, Mapping[str, Activations]]", model(batches, active))
        return {variant: {"": self._recorders(variant, active)(batch, model)} for variant, batch in batches.items()}

    def _weights(self, stage: int, means: Mapping[int, Mean]) -> dict[int, float]:
        # In the first stage the head has no say, but must stay in the graph: distributed training waits for it.
        weights = {
            index: 0.0 if stage == 1 and self.terms[index].term.stage == "predictions" else self.terms[index].weight
            for index in means
        }
        if self.balanced and self.progress is not None and stage < 2:
            if self._step % EVERY == 0 and not self._rebalanced and torch.is_grad_enabled():
                rebalance(self.progress, [means[index] for index in self.balanced], self.matrices)
                self._rebalanced = True
            weights |= dict(zip(self.balanced, self.progress.weights.tolist(), strict=True))
        return weights

    def _sum(
        self, means: Mapping[int, Mean], weights: Mapping[int, float], totals: Mapping[str, float] | None, examples: int
    ) -> Loss:
        total: Tensor | None = None
        parts: dict[str, Tensor] = {}
        for index, mean in means.items():
            label = self.terms[index].label
            share = 1.0 if totals is None else mean.count / max(totals[label], 1e-9)
            weighted = (weights[index] * share) * mean.value
            total = weighted if total is None else total + weighted
            for name, part in mean.parts.items():
                parts[name if name not in parts else f"{label}.{name}"] = share * part
        assert total is not None
        if self.balanced and set(self.balanced) <= set(means):
            share = 1.0 if totals is None else examples / totals[EXAMPLES]
            for index in self.balanced:
                name = f"{self.terms[index].term.part}_weight"
                parts[name if name not in parts else f"{self.terms[index].label}_weight"] = total.new_tensor(
                    share * weights[index]
                )
        return Loss(total, parts)


def union(requests: Any) -> Request:
    """One request for all that several name."""
    return reduce(or_, requests, Request())


def variants(inputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The inputs of a batch by variant: `masked.labels` is the input `labels` of the variant `masked`.

    A variant has all inputs of the clean one that it does not name itself.
    """
    clean = {name: value for name, value in inputs.items() if "." not in name}
    batches = {CLEAN: clean}
    for name, value in inputs.items():
        variant, dot, own = name.partition(".")
        if dot:
            batches.setdefault(variant, dict(clean))[own] = value
    return batches


def _check_sources(terms: Sequence[Weighted], sources: Mapping[str, Source]) -> None:
    for each in terms:
        if each.term.source is not None and each.term.source not in sources:
            raise ConfigError(
                f"term `{each.label}` learns from `{each.term.source}`, and there is "
                f"{', '.join(sorted(sources)) or 'no teacher'}; leave it out"
            )
