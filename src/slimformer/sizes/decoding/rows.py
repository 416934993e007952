"""The texts of a batch while they are written: each row has its own length and its own end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import StoppingCriteria


@dataclass(frozen=True)
class Stopping:
    """When a row ends.

    Args:
        limit: Tokens that a row has at most, its prompt included.
        ends: Tokens after which a row ends.
        others: Further criteria, which look at one row at a time.
    """

    limit: int
    ends: Tensor
    others: tuple[StoppingCriteria, ...]

    @classmethod
    def of(cls, criteria: Sequence[StoppingCriteria], prompt: Tensor) -> Stopping:
        """The criteria as `generate` prepares them; every row gets one token at least, as there."""
        limits = [each.max_length for each in criteria if isinstance(each, MaxLengthCriteria)]
        ends = [each.eos_token_id.flatten() for each in criteria if isinstance(each, EosTokenCriteria)]
        others = tuple(each for each in criteria if not isinstance(each, MaxLengthCriteria | EosTokenCriteria))
        none = prompt.new_empty(0)
        return cls(max(min(limits), prompt.shape[1] + 1), torch.cat([none, *(each.to(none) for each in ends)]), others)


class Rows:
    """Prompts padded on the left and what follows them; column j of a row is the same token in every call.

    Args:
        prompt: Tokens, [batch, columns].
        stopping: When rows end.
        spare: Columns that a draft may need beyond the limit.
        padding: What stands after the end of a row.
    """

    def __init__(self, prompt: Tensor, stopping: Stopping, spare: int, padding: int) -> None:
        batch, columns = prompt.shape
        self.stopping = stopping
        self.padding = padding
        self.tokens = prompt.new_full((batch, stopping.limit + spare), padding)
        self.tokens[:, :columns] = prompt
        self.lengths = prompt.new_full((batch,), columns)
        self.open = torch.ones_like(self.lengths, dtype=torch.bool)

    @property
    def room(self) -> Tensor:
        """Tokens that each row may still get, [batch]."""
        return (self.stopping.limit - self.lengths) * self.open

    def window(self, first: Tensor, count: int) -> Tensor:
        """Tokens of each row from its column `first` on, [batch, count]."""
        return self.tokens.gather(1, self._columns(first, count))

    def propose(self, offset: int, tokens: Tensor) -> None:
        """Write drafted tokens, [batch], as many columns after the end of each row."""
        self.tokens.scatter_(1, (self.lengths + offset)[:, None], tokens[:, None])

    def extend(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Add the first `counts` tokens to each row that is open, up to its end; return how many were added.

        Args:
            tokens: [batch, n].
            counts: Valid ones of them, [batch].
        """
        self.tokens.scatter_(1, self._columns(self.lengths, tokens.shape[1]), tokens)
        counts = torch.minimum(counts, self.room)
        ended = self.lengths + counts >= self.stopping.limit
        for ends in self._ends(tokens, counts):
            ended |= ends < counts
            counts = torch.minimum(counts, ends + 1)
        self.lengths = self.lengths + counts
        self.open = self.open & ~ended
        return counts

    def finished(self) -> Tensor:
        """The whole batch, filled up with padding, [batch, longest row]."""
        columns = torch.arange(int(self.lengths.max()), device=self.tokens.device)
        return self.tokens[:, : len(columns)].masked_fill(columns >= self.lengths[:, None], self.padding)

    def _ends(self, tokens: Tensor, counts: Tensor) -> list[Tensor]:
        """By each kind of criterion: the first of the new tokens that ends a row, or their number."""
        ends = [_first(torch.isin(tokens, self.stopping.ends))]
        if self.stopping.others:
            ended = torch.zeros_like(tokens, dtype=torch.bool)
            for row, count in enumerate(counts.tolist()):
                for number in range(count):
                    text = self.tokens[row : row + 1, : int(self.lengths[row]) + number + 1]
                    ended[row, number] = any(bool(each(text, None)) for each in self.stopping.others)
            ends.append(_first(ended))
        return ends

    def _columns(self, first: Tensor, count: int) -> Tensor:
        return first[:, None] + torch.arange(count, device=first.device)


def _first(flags: Tensor) -> Tensor:
    """Place of the first that is set in each row; the number of places where none is."""
    return (~flags).long().cumprod(dim=1).sum(dim=1)
