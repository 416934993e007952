"""How far weights are from others of the same shape, and what brings them back within a distance.

A matrix is [rows, columns] with a row for each output, as `nn.Linear` keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from slimformer.errors import ObjectiveError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


def mars_distance(weight: Tensor, start: Tensor) -> Tensor:
    """The maximum absolute row sum of the difference: max_i Σ_j |W_ij - W0_ij| (MARS, arXiv 2002.08253).

    It is the operator norm of the difference for inputs measured by their largest entry.

    Args:
        weight: [rows, columns].
        start: The same shape.
    """
    _check(weight, start)
    return (weight - start).abs().sum(-1).max()


def l2_distance(weights: Iterable[Tensor], starts: Iterable[Tensor]) -> Tensor:
    """The Euclidean distance of two sets of tensors, taken as one long vector each: sqrt(Σ (w - w0)²).

    Args:
        weights: Tensors of any shapes.
        starts: As many, of the same shapes.

    Example:
        >>> l2_distance(model.parameters(), teacher.parameters())
    """
    squares = []
    for weight, start in zip(weights, starts, strict=True):
        _check(weight, start)
        squares.append((weight - start).square().sum())
    if not squares:
        raise ObjectiveError("there are no weights to compare; give one tensor at least")
    return torch.stack(squares).sum().sqrt()


def mars_projection(weight: Tensor, start: Tensor, radius: float) -> Tensor:
    """The weights with every row whose distance from its start is too long drawn in along a straight line.

        W0_i + (W_i - W0_i) / max(1, Σ_j |W_ij - W0_ij| / λ)

    A row within the ball stays as it is. The published code of arXiv 2002.08253 does the same; the nearest point of the
    ball would be another one.

    Args:
        weight: [rows, columns].
        start: The centre, of the same shape.
        radius: λ, the longest absolute row sum of the difference.
    """
    _check(weight, start, radius)
    moved = weight - start
    lengths = moved.abs().sum(-1, keepdim=True)  # [rows, 1]
    return torch.where(lengths > radius, start + moved * (radius / lengths.clamp(min=radius)), weight)


def frobenius_projection(weight: Tensor, start: Tensor, radius: float) -> Tensor:
    """The same with one length for the whole matrix: W0 + (W - W0) / max(1, ‖W - W0‖_F / λ).

    Args:
        weight: A tensor of any shape.
        start: The centre, of the same shape.
        radius: λ, the longest Euclidean length of the difference.
    """
    _check(weight, start, radius)
    moved = weight - start
    length = moved.square().sum().sqrt()
    return torch.where(length > radius, start + moved * (radius / length.clamp(min=radius)), weight)


def _check(weight: Tensor, start: Tensor, radius: float = 1.0) -> None:
    if weight.shape != start.shape:
        raise ObjectiveError(
            f"weights are {list(weight.shape)} and their start is {list(start.shape)}; both need the same shape"
        )
    if radius <= 0:
        raise ObjectiveError(f"the radius is {radius:g}; give a number above 0")
