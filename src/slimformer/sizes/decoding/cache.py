"""One cache of keys and values in which every row of a batch has its own end.

Each forward says where its tokens belong, and what was there is overwritten. So a row is rolled back by writing over
its tail the next time: nothing is copied, and rows that keep different numbers of tokens need no padding between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from slimformer.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

#: Slots, and share of them, by which a full cache grows.
STEP, SHARE = 32, 0.25


@dataclass(frozen=True)
class Slots:
    """Where the tokens of one forward belong in the cache.

    Args:
        first: Slot of the first token of each row, [batch].
        count: Tokens of every row.
        lowest: The least of the first slots.
        highest: The largest of them.
    """

    first: Tensor
    count: int
    lowest: int
    highest: int

    @classmethod
    def of(cls, first: Tensor, count: int) -> Slots:
        """The slots from `first` on."""
        lowest, highest = (int(bound) for bound in first.aminmax())
        return cls(first, count, lowest, highest)

    @property
    def end(self) -> int:
        """The slot after the last one of all rows."""
        return self.highest + self.count

    @property
    def even(self) -> bool:
        """Whether all rows are at the same slot."""
        return self.lowest == self.highest

    def every(self) -> Tensor:
        """The slot of each token, [batch, count]."""
        return self.first[:, None] + torch.arange(self.count, device=self.first.device)


class RowLayer(CacheLayerMixin):
    """Keys and values of one block, [batch, heads, slots, width], with free slots at the end.

    Args:
        placing: Holds, for all blocks, where the tokens of this forward belong.
    """

    is_sliding = False
    keys: Any
    values: Any

    def __init__(self, placing: list[Slots]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.placing = placing

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Begin with no slot."""
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write to the slots of this forward and show all slots up to their end."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        (slots,) = self.placing
        self.keys = _write(_grown(self.keys, slots.end), key_states, slots)
        self.values = _write(_grown(self.values, slots.end), value_states, slots)
        return self.keys[:, :, : slots.end], self.values[:, :, : slots.end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Slots that the forward sees, from the first on."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens before those of this forward, where all rows have as many."""
        return self.placing[0].highest if self.placing else 0

    def get_max_length(self) -> int:
        """There is no limit."""
        return -1


class RowCache(Cache):
    """The cache of one run of `generate`, taken over from the one that Transformers, or the caller, made for it.

    Args:
        origin: A plain growing cache. It is empty while this one lives, so that nothing is held twice, until
            `hand_back` fills it again.
    """

    layers: list[Any]

    def __init__(self, origin: DynamicCache) -> None:
        _refuse_others(origin)
        self.placing: list[Slots] = []
        new_layer: Any = partial(RowLayer, self.placing)
        super().__init__(layer_class_to_replicate=new_layer)
        self.origin = origin
        self.length: int = origin.get_seq_length()
        held: Any
        for held in origin.layers:
            self.layers.append(layer := RowLayer(self.placing))
            if held.is_initialized:
                layer.keys, layer.values, layer.is_initialized = held.keys, held.values, True
        origin.reset()

    def place(self, slots: Slots) -> None:
        """Say where the tokens of the next forward belong."""
        self.placing[:] = [slots]

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, free slots included."""
        layers = [layer for layer in self.layers if layer.is_initialized]
        return sum(each.untyped_storage().nbytes() for layer in layers for each in (layer.keys, layer.values))

    def hand_back(self, length: int) -> DynamicCache:
        """Give the first slots, block by block, to the cache that this one was made from."""
        for index, layer in enumerate(self.layers):
            if layer.is_initialized and length:
                self.origin.update(layer.keys[:, :, :length], layer.values[:, :, :length], index)
                layer.keys = layer.values = None
                layer.is_initialized = False
        return self.origin


def _refuse_others(cache: object) -> None:
    """Only a cache that keeps every token as it is can be written over."""
    if type(cache) is not DynamicCache:
        raise ConfigError(
            f"a draft needs a plain cache that grows, and this one is a `{type(cache).__name__}`; "
            "leave out `cache_implementation` and `use_cache=False`, or pass a `DynamicCache`"
        )
    other = next((layer for layer in cache.layers if type(layer) is not DynamicLayer), None)
    if other is not None or cache.offloading:
        kind = "an offloaded one" if other is None else f"a `{type(other).__name__}`"
        raise ConfigError(f"a draft needs every token in the cache, and the model has {kind}; leave the draft out")


def _grown(stored: Tensor, end: int) -> Tensor:
    """The same with free slots, zeros, at the end if there are fewer than `end`."""
    missing = end - stored.shape[2]
    if missing <= 0:
        return stored
    # Zeros, because what is masked is multiplied by zero, which leaves NaN of unwritten memory as it is.
    return torch.nn.functional.pad(stored, (0, 0, 0, max(missing, STEP, int(SHARE * end))))


def _write(stored: Tensor, states: Tensor, slots: Slots) -> Tensor:
    if slots.even:
        stored[:, :, slots.lowest : slots.end] = states
    else:
        rows = torch.arange(len(states), device=states.device)[:, None]
        stored.transpose(1, 2)[rows, slots.every()] = states.transpose(1, 2)
    return stored
