"""Granularity: which weights share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from slimformer.errors import FormatError

Shared = Literal["matrix", "row", "group"]


@dataclass(frozen=True)
class Granularity:
    """What shares a scale: all of a matrix, each row, or each group of neighbours in a row.

    A row need not be a multiple of the group; its last group is then shorter.

    Args:
        name: "matrix", "row" or "group".
        group_size: Weights of a group; groups, and only they, have one.
    """

    name: Shared = "row"
    group_size: int | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(Shared):
            raise FormatError(
                f"`granularity` is `{self.name}`; a scale is shared by a `matrix`, a `row` or a `group` of weights"
            )
        if (self.name == "group") != (self.group_size is not None):
            raise FormatError(
                f"`granularity` is `{self.name}` and `group_size` is {self.group_size}; groups, and only they, need "
                "a size"
            )
        if self.group_size is not None and self.group_size < 1:
            raise FormatError(f"`group_size` is {self.group_size}; give 1 or more weights")

    def fold(self, weight: Tensor) -> Tensor:
        """Units that share a scale, along the last axis; a last group that is shorter is filled up with zeros."""
        if self.name == "matrix":
            return weight.reshape(*[1] * (weight.dim() - 1), -1)
        if self.group_size is None:
            return weight
        short = -weight.shape[-1] % self.group_size
        padded = torch.nn.functional.pad(weight, (0, short)) if short else weight
        grouped: Tensor = padded.unflatten(-1, (-1, self.group_size))
        return grouped

    def counts(self, weight: Tensor) -> int | Tensor:
        """How many weights of each unit that `fold` makes are real, for the last axis kept."""
        if self.group_size is None:
            return weight.numel() if self.name == "matrix" else weight.shape[-1]
        columns = weight.shape[-1]
        starts = torch.arange(0, columns, self.group_size, device=weight.device)
        return (columns - starts).clamp(max=self.group_size)[:, None]

    def unfold(self, folded: Tensor, shape: torch.Size) -> Tensor:
        """The inverse of `fold`."""
        if self.group_size is None:
            return folded.reshape(shape)
        return folded.flatten(-2)[..., : shape[-1]]

    def spread(self, scales: Tensor, columns: int) -> Tensor:
        """Scales as they are stored, one per unit, as scales that broadcast to the weight."""
        if self.group_size is None:
            return scales
        return scales.repeat_interleave(self.group_size, dim=-1)[..., :columns]
