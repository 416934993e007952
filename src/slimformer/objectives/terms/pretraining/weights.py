"""Weights that stay near a teacher's: what arXiv 2210.02871 compares the matching of features with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field

from slimformer.anatomy.rows import matrices
from slimformer.config import Config
from slimformer.errors import ConfigError
from slimformer.objectives.losses.weights import mars_distance
from slimformer.objectives.recording import Request
from slimformer.objectives.terms.term import Mean, Term

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from slimformer.objectives.recording import Activations

Norm = Literal["l2", "mars"]


class WeightDistance(Term):
    """Distance of the student's weights from those of a teacher of the same shape, heads aside.

    `l2` is the squared Euclidean distance of all weights, ‖θ - θ'‖²; `mars` the sum over matrices of the largest
    absolute row sum of their difference, a row being one output (arXiv 2002.08253). Neither looks at a batch.
    """

    class Options(Config):
        """How the distance is measured."""

        norm: Norm = Field(
            "l2", description="`l2` for all weights together, `mars` for the longest row of each matrix."
        )

    positional = "norm"
    part = "weights"
    source = None

    def check(self) -> None:
        """Refuse a teacher of another shape, and one that is not there."""
        if self.models.teacher is None:
            raise ConfigError("`weights` keeps to a teacher's weights, and there is none; leave it out")
        shapes = [
            {name: tuple(weight.shape) for name, weight in model.base.named_parameters()} for model in self.models.pair
        ]
        shared = shapes[0].keys() & shapes[1].keys()
        other = next((name for name in sorted(shared) if shapes[0][name] != shapes[1][name]), None)
        if other is not None or len(self.models.pair[0].blocks) != len(self.models.pair[1].blocks):
            seen = "the numbers of blocks differ" if other is None else f"`{other}` has another shape"
            raise ConfigError(f"`weights` needs a teacher of the student's shape, and {seen}; learn `features`")
        self._kept: dict[str, Tensor] = {}

    def student_request(self) -> Request:
        """Nothing of a forward."""
        return Request()

    def compare(self, teacher: Activations, student: Activations, inputs: Mapping[str, Any]) -> Mean:
        """The distance, the same for every batch."""
        pairs = self._pairs()
        if self.options.norm == "l2":
            value = torch.stack([(weight - kept).square().sum() for weight, kept in pairs.values()]).sum()
        else:
            rows = {name: each.rows for name, each in matrices(self.models.student.base) if name in pairs}
            value = torch.stack([mars_distance(*map(rows[name], pairs[name])) for name in rows]).sum()
        return self.mean(value, inputs)

    def _pairs(self) -> dict[str, tuple[nn.Parameter, Tensor]]:
        """Each weight of the student with the teacher's, where both have it."""
        other, own = (dict(model.base.named_parameters()) for model in self.models.pair)
        pairs = {}
        for name, weight in own.items():
            if name in other:
                kept = self._kept.get(name)
                if kept is None or kept.device != weight.device:
                    kept = self._kept[name] = other[name].detach().to(weight)
                pairs[name] = (weight, kept)
        return pairs
