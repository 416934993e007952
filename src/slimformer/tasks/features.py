"""What a model is fed: a map-style data set of inputs, made once, the same every time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

#: The inputs of one example, under the names the model's forward knows.
Inputs = dict[str, Any]


class Features(Sequence[Inputs]):
    """Inputs of one split; item i holds exactly what the model's forward takes.

    It is a map-style data set to torch's `DataLoader` and to `transformers.Trainer`. What metrics need
    and the model must not see lies in `extra`, one entry for each item.

    Args:
        inputs: The inputs of each item.
        extra: What the metrics of the kind need to know of each item.
        transform: Turns stored inputs into the model's, given the item's index and the epoch. It has to be
            a pure function, so that an interrupted run resumes with the very same inputs.
    """

    def __init__(
        self,
        inputs: Sequence[Inputs],
        extra: Sequence[Any] = (),
        transform: Callable[[Inputs, int, int], Inputs] | None = None,
    ) -> None:
        self._inputs = inputs
        self.extra = extra
        self._transform = transform
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins; only inputs that are drawn anew each epoch (masked tokens) depend on it."""
        self.epoch = epoch

    @overload
    def __getitem__(self, index: int) -> Inputs: ...
    @overload
    def __getitem__(self, index: slice) -> list[Inputs]: ...
    def __getitem__(self, index: int | slice) -> Inputs | list[Inputs]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        inputs = self._inputs[index]
        if self._transform is None:
            return inputs
        return self._transform(inputs, index % len(self), self.epoch)

    def __len__(self) -> int:
        return len(self._inputs)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each item; nothing is transformed for it, so no image is read."""
        return [item_length(inputs) for inputs in self._inputs]


def item_length(item: Mapping[str, Any]) -> int:
    """Tokens of an item, the longest choice counting where there are several; 0 for images."""
    ids = item.get("input_ids")
    if ids is None:
        return 0
    first = ids[0] if len(ids) else 0
    return max(len(choice) for choice in ids) if np.ndim(first) else len(ids)
