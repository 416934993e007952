"""Keeping weights within a distance of others, by drawing them back after each optimizer step (arXiv 2002.08253)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from slimformer.anatomy.rows import matrices
from slimformer.objectives.losses.weights import frobenius_projection, mars_distance, mars_projection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn


class Projection:
    """What draws the matrices of a model back into balls around some centres, called after each step.

    Each matrix has a ball of its own. Biases and the weights of norms, which are no matrices, are free.

    Args:
        model: The model that is trained.
        centres: Name of a parameter → what it stays close to; a matrix that is not named stays close to 0, as that of a
            new head.
        radius: λ of the matrices that have a centre.
        zero_radius: λ of those that have none; None for the same.
        norm: `mars` measures each row, `frobenius` the whole matrix.

    Example:
        >>> centres = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        >>> train(model, options, features, collate, folder, after_step=Projection(model, centres, radius=4.0))
    """

    def __init__(
        self,
        model: nn.Module,
        centres: Mapping[str, Tensor],
        radius: float,
        zero_radius: float | None = None,
        norm: Literal["mars", "frobenius"] = "mars",
    ) -> None:
        self.matrices = dict(matrices(model))
        self.centres = {name: self.matrices[name].rows(centre) for name, centre in centres.items() if name in self}
        self.radius = radius
        self.zero_radius = radius if zero_radius is None else zero_radius
        self.project = mars_projection if norm == "mars" else frobenius_projection

    def __contains__(self, name: object) -> bool:
        return name in self.matrices

    @torch.no_grad()
    def __call__(self, step: int = 0) -> None:
        """Draw back what has gone too far."""
        for name, matrix in self.matrices.items():
            weight = matrix.rows()
            weight.copy_(self.project(weight, self._centre(name, weight), self._radius(name)))

    @torch.no_grad()
    def distances(self) -> dict[str, float]:
        """The longest row of each matrix, measured from its centre."""
        rows = {name: matrix.rows() for name, matrix in self.matrices.items()}
        return {name: float(mars_distance(weight, self._centre(name, weight))) for name, weight in rows.items()}

    def _centre(self, name: str, weight: Tensor) -> Tensor:
        if name not in self.centres:
            return torch.zeros_like(weight)
        if self.centres[name].device != weight.device:
            self.centres[name] = self.centres[name].to(weight.device)
        return self.centres[name]

    def _radius(self, name: str) -> float:
        return self.radius if name in self.centres else self.zero_radius
