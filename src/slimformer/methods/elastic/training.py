"""Which size each step trains, and what it learns: labels, and what the largest size says of the same batch."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy
from slimformer.objectives import Models, TermObjective, build_terms, parse_terms
from slimformer.objectives.recording import Recorder
from slimformer.sizes import Allocation, Elastic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from slimformer.objectives import Loss
    from slimformer.objectives.recording import Activations, Request
    from slimformer.sizes import Size


class SizeSchedule:
    """The size of each step, as a function of seed and step alone: the same on all processes and after a resume.

    Args:
        elastic: The sizes of the model.
        probabilities: How often each is drawn, smallest first.
        seed: Seed of the run.
        uniform: Steps at the beginning in which all are drawn alike.
        per_block: Draw a size for each block (Once-for-All, arXiv 1908.09791) instead of one for all of them.
    """

    def __init__(
        self, elastic: Elastic, probabilities: Sequence[float], seed: int, uniform: int = 0, per_block: bool = False
    ) -> None:
        self.elastic = elastic
        self.probabilities = tuple(probabilities)
        self.seed = seed
        self.uniform = uniform
        self.per_block = per_block

    def __call__(self, step: int) -> None:
        """Make the model the size of a step, until the next one begins."""
        self.elastic.set(self.at(step))

    def at(self, step: int) -> Allocation:
        """The size of a step."""
        draw = random.Random(f"{self.seed} {step}")
        weights = (1.0,) * len(self.probabilities) if step < self.uniform else self.probabilities
        if self.per_block:
            return self._skipped(draw, draw.choices(self.elastic.sizes, k=len(self.elastic.blocks)))
        return self.elastic.allocation(draw.choices(self.elastic.sizes, weights)[0])

    def _skipped(self, draw: random.Random, sizes: Sequence[Size]) -> Allocation:
        """These sizes, without a block as often as its size leaves one out; the last one drawn is kept."""
        blocks: list[Size | None] = list(sizes)
        for index in draw.sample(range(len(sizes)), len(sizes)) if any(size.depth < 1 for size in sizes) else ():
            left = sum(size is not None for size in blocks)
            if self.elastic.may_skip(index) and left > 1 and draw.random() >= sizes[index].depth:
                blocks[index] = None
        return Allocation(tuple(blocks))


class Largest:
    """The model itself at its largest size, as a teacher of the smaller ones in the same step.

    Args:
        model: The elastic model, without wrappers.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.elastic = Elastic.of(model)
        self._recorders: dict[tuple[str, ...], Recorder] = {}

    @torch.no_grad()
    def __call__(self, model: nn.Module, inputs: dict[str, Any], request: Request) -> Activations:
        """What it computes for a batch, without dropout."""
        if request.names not in self._recorders:
            self._recorders[request.names] = Recorder(self.model, request)
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with self.elastic.at(self.elastic.largest):
                activations = self._recorders[request.names](inputs)
        finally:
            for module in training:
                module.training = True
        return {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in activations.items()}


class ElasticObjective:
    """The task's own loss at the size of the step, and what the largest size says; at that size its loss alone.

    Args:
        model: The elastic model, without wrappers.
        distil: Weight of what the largest size says.
        temperature: Of its soft labels.
        items: What the task's own loss is a mean over.
        joint: Sizes that take turns over the parts of a batch; none to leave the size to the step.
        loss: The term that is the task's own loss.
        teaching: The term by which a size learns what the largest says.
    """

    def __init__(
        self,
        model: nn.Module,
        distil: float,
        temperature: float = 1.0,
        items: Callable[[Mapping[str, Any]], int] | None = None,
        joint: Sequence[Allocation] = (),
        loss: str = "labels",
        teaching: str = "logits",
    ) -> None:
        self.elastic = Elastic.of(model)
        self.joint = tuple(joint)
        self._part = 0
        anatomy = Anatomy.of(model)
        models = Models(anatomy, anatomy, items=items)
        self._alone = TermObjective(build_terms(parse_terms(loss), models, labelled=True), model, {})
        self._taught = self._alone
        if distil > 0:
            soft = {"logits": {"temperature": temperature}}
            terms = build_terms(parse_terms(f"{loss}, {teaching}:{distil:g}"), models, soft, labelled=True)
            self._taught = TermObjective(terms, model, {"teacher": Largest(model)})

    def begin(self, step: int) -> None:
        """Let a step begin with the smallest size; the last batch of an epoch may have had fewer parts than sizes.

        So the turn needs no checkpoint, as a run is interrupted between steps only.
        """
        self._part = 0

    def counts(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """What each mean is over in this batch."""
        return self._taught.counts(inputs)

    def __call__(self, model: nn.Module, inputs: Mapping[str, Any], totals: Mapping[str, float] | None = None) -> Loss:
        """The loss of a batch or a part of it."""
        if self.joint:
            self.elastic.set(self.joint[self._part % len(self.joint)])
            self._part += 1
        largest = self.elastic.extent.value == self.elastic.extent.full
        return (self._alone if largest else self._taught)(model, inputs, totals)
