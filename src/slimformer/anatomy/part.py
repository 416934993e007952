"""The rows of a fused matrix that belong to one of the matrices fused into it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """Part `index` of `count` equal matrices fused along the output axis.

    The output axis reads as `[groups, count, width]`. With one group the parts lie one after the other
    (GPT-2's and ModernBERT's `[q | k | v]`); with one group per head they are interleaved (GPT-NeoX).
    """

    index: int
    count: int
    groups: int = 1

    def take(self, fused: Tensor, dim: int = 0) -> Tensor:
        """Return the part's slice of `fused` along `dim`; a view of the same memory when `groups` is 1."""
        dim %= fused.dim()
        grouped: Tensor = fused.unflatten(dim, (self.groups, self.count, -1))
        return grouped.select(dim + 1, self.index).flatten(dim, dim + 1)

    def put(self, fused: Tensor, value: Tensor, dim: int = 0) -> Tensor:
        """Return a copy of `fused` in which the part's slice is `value`; differentiable in both."""
        dim %= fused.dim()
        pieces = list(fused.unflatten(dim, (self.groups, self.count, -1)).unbind(dim + 1))
        pieces[self.index] = value.unflatten(dim, (self.groups, -1))
        return torch.stack(pieces, dim + 1).flatten(dim, dim + 2)

    def rows(self, index: Tensor, fused_rows: int) -> Tensor:
        """Translate row numbers of the part into row numbers of the fused matrix."""
        width = fused_rows // (self.groups * self.count)
        group, offset = index // width, index % width
        return (group * self.count + self.index) * width + offset

    def all_rows(self, index: Tensor, fused_rows: int) -> Tensor:
        """Row numbers of the fused matrix that keep row `index` of every part, still fused the same way."""
        parts = [Part(number, self.count, self.groups).rows(index, fused_rows) for number in range(self.count)]
        if self.groups == 1:
            return torch.cat(parts)
        width = fused_rows // (self.groups * self.count)
        return torch.stack([rows.view(-1, width) for rows in parts], dim=1).flatten()
