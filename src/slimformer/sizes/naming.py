"""What names of sizes mean in a model: one size for each block. Known without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slimformer.errors import SizeError
from slimformer.sizes.size import Allocation, Size, find_size, parse_blocks, units

#: What names a size or an allocation: `"S"`, `0.25`, `"S,S,0,XL"`, or one name or share per block.
Sized = str | float | Allocation | Size | Sequence[str | float]


@dataclass(frozen=True)
class Naming:
    """The sizes that are nested in a model, by their names.

    Args:
        sizes: Smallest first.
        skippable: For each block, whether it can be left out.
        published: Allocations that have names of their own.
    """

    sizes: tuple[Size, ...]
    skippable: tuple[bool, ...]
    published: dict[str, Allocation] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sizes, smallest first."""
        return tuple(size.name for size in self.sizes)

    @property
    def largest(self) -> Allocation:
        """The whole model."""
        return Allocation((self.sizes[-1],) * len(self.skippable))

    def allocation(self, size: Sized) -> Allocation:
        """What a size means block by block; an allocation is checked and returned as it is."""
        if isinstance(size, Allocation):
            return self._checked(size)
        if isinstance(size, str) and size.strip() in self.published:
            return self.published[size.strip()]
        if isinstance(size, str) and "," in size:
            size = size.split(",")
        if isinstance(size, str | float | int):
            size = find_size(self.sizes, size, tuple(self.published))
        if isinstance(size, Size):
            return self._checked(Allocation(self._spread(size)))
        return self._checked(parse_blocks(self.sizes, size, len(self.skippable)))

    def _spread(self, size: Size) -> tuple[Size | None, ...]:
        """A size for every block, but for those that its depth leaves out, which are spread evenly."""
        blocks = len(self.skippable)
        free = [index for index, may_skip in enumerate(self.skippable) if may_skip]
        skipped = min(blocks - units(blocks, size.depth), len(free))
        left_out = {free[(2 * number + 1) * len(free) // (2 * skipped)] for number in range(skipped)}
        return tuple(None if index in left_out else size for index in range(blocks))

    def _checked(self, allocation: Allocation) -> Allocation:
        known, blocks = ", ".join(self.names), len(self.skippable)
        if len(allocation) != blocks:
            raise SizeError(f"the allocation has {len(allocation)} blocks, and the model has {blocks}")
        for index, size in enumerate(allocation):
            if size is None and not self.skippable[index]:
                raise SizeError(f"block {index} cannot be skipped in this model; give it a size of {known}")
            if size is not None and size not in self.sizes:
                raise SizeError(f"there is no size `{size.name}` ({size.neurons:g}); the model has {known}")
        return allocation
