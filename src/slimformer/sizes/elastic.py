"""Models of which any nested size can be used: all in one set of weights, each in its own thread."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.anatomy import Anatomy, unwrap
from slimformer.errors import SizeError
from slimformer.sizes.size import Allocation, Size, find_size, name_sizes, parse_blocks, units
from slimformer.views import Extent, bake, skip_block, slice_heads, slice_neurons, strip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from slimformer.views import Width

#: What names a size or an allocation: `"S"`, `0.25`, `"S,S,0,XL"`, or one name or share per block.
Sized = str | float | Allocation | Size | Sequence[str | float]

_ELASTIC = "_slimformer_elastic"


@dataclass(frozen=True)
class NestedBlock:
    """The widths of one block: neurons, heads where they are nested, and whether it runs where it may be skipped."""

    neurons: Width
    heads: Width | None
    depth: Width | None


class Elastic:
    """The nested sizes of a model, and which of them is in use.

    Example:
        >>> elastic = make_elastic(model)
        >>> with elastic.at("S"):
        ...     small = model(**inputs)
    """

    def __init__(self, sizes: Sequence[Size], blocks: Sequence[NestedBlock], extent: Extent) -> None:
        self.sizes = tuple(sizes)
        self.blocks = tuple(blocks)
        self.extent = extent

    @classmethod
    def of(cls, model: nn.Module) -> Elastic:
        """The sizes of a model that was made elastic."""
        elastic = unwrap(model).__dict__.get(_ELASTIC)
        if elastic is None:
            raise SizeError(f"this {type(unwrap(model)).__name__} has one size only; make it elastic first")
        return elastic  # type: ignore[no-any-return]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sizes, smallest first."""
        return tuple(size.name for size in self.sizes)

    @property
    def largest(self) -> Allocation:
        """The whole model."""
        return Allocation((self.sizes[-1],) * len(self.blocks))

    def allocation(self, size: Sized) -> Allocation:
        """What a size means block by block; an allocation is checked and returned as it is."""
        if isinstance(size, Allocation):
            return self._checked(size)
        if isinstance(size, str) and "," in size:
            size = size.split(",")
        if isinstance(size, str | float | int):
            size = find_size(self.sizes, size)
        if isinstance(size, Size):
            return self._checked(Allocation(self._spread(size)))
        return self._checked(parse_blocks(self.sizes, size, len(self.blocks)))

    @contextmanager
    def at(self, size: Sized) -> Iterator[Allocation]:
        """Use a size in the current thread inside a `with` block."""
        allocation = self.allocation(size)
        with self.extent.at(self._values(allocation)):
            yield allocation

    def set(self, size: Sized) -> None:
        """Use a size from now on wherever no `with` block says otherwise."""
        self.extent.set(self._values(self.allocation(size)))

    def may_skip(self, index: int) -> bool:
        """Whether a block can be left out of an allocation."""
        return self.blocks[index].depth is not None

    def share_cache(self, one: Sized, other: Sized) -> None:
        """Raise where two sizes cannot go on from one cache of keys and values."""
        for index, (a, b) in enumerate(zip(self.allocation(one), self.allocation(other), strict=True)):
            heads = [None if size is None else self._heads(index, size) for size in (a, b)]
            if heads[0] != heads[1]:
                counts = " and ".join("none (skipped)" if count is None else str(count) for count in heads)
                raise SizeError(
                    f"one cache cannot serve both `{one}` and `{other}`: block {index} has key-value heads {counts}; "
                    "choose sizes with the same heads that run the same blocks"
                )

    def _values(self, allocation: Allocation) -> tuple[int, ...]:
        """An allocation as the extent holds it."""
        values = list(self.extent.full)
        for index, (block, size) in enumerate(zip(self.blocks, allocation, strict=True)):
            if size is None:
                if block.depth is not None:
                    values[block.depth.index] = 0
                continue
            values[block.neurons.index] = units(block.neurons.full, size.neurons)
            if block.heads is not None:
                values[block.heads.index] = self._heads(index, size)
        return tuple(values)

    def _heads(self, index: int, size: Size) -> int:
        width = self.blocks[index].heads
        return 0 if width is None else units(width.full, size.heads)

    def _spread(self, size: Size) -> tuple[Size | None, ...]:
        """A size for every block, but for those that its depth leaves out, which are spread evenly."""
        free = [index for index in range(len(self.blocks)) if self.may_skip(index)]
        skipped = min(len(self.blocks) - units(len(self.blocks), size.depth), len(free))
        left_out = {free[(2 * number + 1) * len(free) // (2 * skipped)] for number in range(skipped)}
        return tuple(None if index in left_out else size for index in range(len(self.blocks)))

    def _checked(self, allocation: Allocation) -> Allocation:
        if len(allocation) != len(self.blocks):
            raise SizeError(f"the allocation has {len(allocation)} blocks, and the model has {len(self.blocks)}")
        for index, size in enumerate(allocation):
            if size is None and not self.may_skip(index):
                raise SizeError(f"block {index} cannot be skipped in this model; give it a size of {self._names()}")
            if size is not None and size not in self.sizes:
                raise SizeError(f"there is no size `{size.name}` ({size.neurons:g}); the model has {self._names()}")
        return allocation

    def _names(self) -> str:
        return ", ".join(self.names)


def make_elastic(
    model: nn.Module,
    sizes: Sequence[Size] | Sequence[float] | None = None,
    heads: bool = False,
    skip: bool = False,
) -> Elastic:
    """Give a model nested sizes; nothing is copied, and at its largest size it computes what it did before.

    Args:
        model: An encoder, decoder or ViT of a known family.
        sizes: Shares of the feed-forward neurons, or sizes from `name_sizes`; MatFormer's four by default.
        heads: Nest heads too, even if no size has fewer of them.
        skip: Let blocks be skipped, even if no size has fewer of them.
    """
    plain: Any = unwrap(model)
    if _ELASTIC in plain.__dict__:
        raise SizeError(f"this {type(plain).__name__} is elastic already; use `Elastic.of(model)`")
    chosen = _sizes(sizes)
    heads = heads or any(size.heads < 1 for size in chosen)
    skip = skip or any(size.depth < 1 for size in chosen)
    extent = Extent()
    blocks = [_nest(block, extent, heads, skip) for block in Anatomy.of(plain).blocks]
    elastic = plain.__dict__[_ELASTIC] = Elastic(chosen, blocks, extent)
    return elastic


def extract(model: nn.Module, size: Sized) -> nn.Module:
    """A model of its own that computes what an elastic one computes at a size, without the rest of its weights."""
    with Elastic.of(model).at(size):
        extracted = copy.deepcopy(unwrap(model))
    del extracted.__dict__[_ELASTIC]
    return bake(extracted)


def is_elastic(model: nn.Module) -> bool:
    """Whether a model has nested sizes."""
    return _ELASTIC in unwrap(model).__dict__


def make_plain(model: nn.Module) -> nn.Module:
    """Take the sizes off an elastic model, which is its largest size then and nothing else."""
    plain = unwrap(model)
    Elastic.of(plain)
    del plain.__dict__[_ELASTIC]
    return strip(plain)


def _nest(block: Any, extent: Extent, heads: bool, skip: bool) -> NestedBlock:
    from slimformer.anatomy.block import pinned_by

    return NestedBlock(
        slice_neurons(block, extent),
        slice_heads(block, extent) if heads else None,
        skip_block(block, extent) if skip and pinned_by(block) is None else None,
    )


def _sizes(sizes: Sequence[Size] | Sequence[float] | None) -> tuple[Size, ...]:
    if sizes is None:
        return name_sizes()
    named = tuple(size for size in sizes if isinstance(size, Size))
    if len(named) != len(sizes):
        return name_sizes([float(share) for share in sizes])  # type: ignore[arg-type]
    name_sizes(*([getattr(size, share) for size in named] for share in ("neurons", "heads", "depth")))
    return named
