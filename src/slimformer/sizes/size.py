"""Sizes by name and share, and allocations: one size for each block, or none where the block is skipped."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from slimformer.errors import SizeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Shares of the neurons in MatFormer (arXiv 2310.07707, section 3): 0.5, 1, 2 and 4 times the hidden width.
RATIOS = (0.125, 0.25, 0.5, 1.0)
#: Names of as many sizes, smallest first; more sizes are named by their shares.
NAMES = (("XL",), ("S", "XL"), ("S", "M", "XL"), ("S", "M", "L", "XL"), ("XS", "S", "M", "L", "XL"))


@dataclass(frozen=True)
class Size:
    """One nested size: the shares of a block that it uses.

    Args:
        name: S, M, L, XL, or the share of neurons.
        neurons: Share of the feed-forward neurons.
        heads: Share of the key-value heads, each with the query heads it serves.
        depth: Share of the blocks that run where this size is asked for by name.
    """

    name: str
    neurons: float
    heads: float = 1.0
    depth: float = 1.0


def units(full: int, share: float) -> int:
    """Whole units in a share of them, at least one."""
    return max(1, round(full * share))


@dataclass(frozen=True)
class Allocation:
    """What each block uses: one of the sizes, or None where the block is skipped."""

    blocks: tuple[Size | None, ...]

    def __str__(self) -> str:
        """As the command line takes it: one name where all blocks agree, else one per block, 0 for skipped."""
        names = [size.name if size else "0" for size in self.blocks]
        return names[0] if len(set(names)) == 1 else ",".join(names)

    def __iter__(self) -> Iterator[Size | None]:
        return iter(self.blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def replaced(self, index: int, size: Size | None) -> Allocation:
        """The same with another size for one block."""
        return Allocation((*self.blocks[:index], size, *self.blocks[index + 1 :]))


def name_sizes(
    neurons: Sequence[float] = RATIOS, heads: Sequence[float] | None = None, depth: Sequence[float] | None = None
) -> tuple[Size, ...]:
    """Sizes of these shares, smallest first.

    Args:
        neurons: Shares of the feed-forward neurons, rising to 1.
        heads: Shares of the heads for each of them; all heads everywhere, if none are given.
        depth: Shares of the blocks for each of them; all blocks everywhere, if none are given.
    """
    shares = {"neurons": neurons, "heads": heads, "depth": depth}
    columns = {what: _checked(what, values, len(neurons)) for what, values in shares.items() if values is not None}
    if any(one == other for one, other in pairwise(zip(*columns.values(), strict=True))):
        raise SizeError(f"two sizes are alike in {', '.join(columns)}; give each another share of something")
    names = NAMES[len(neurons) - 1] if len(neurons) <= len(NAMES) else [f"{share:g}" for share in neurons]
    every = (1.0,) * len(neurons)
    rows = zip(names, columns["neurons"], columns.get("heads", every), columns.get("depth", every), strict=True)
    return tuple(Size(*row) for row in rows)


def find_size(sizes: Sequence[Size], name: str | float) -> Size:
    """A size by its name, in capitals or not, or by its share of neurons."""
    for size in sizes:
        if isinstance(name, str) and name.strip().upper() == size.name.upper():
            return size
    share = _number(name)
    for size in sizes:
        if share is not None and abs(size.neurons - share) < 1e-9:
            return size
    known = ", ".join(f"{size.name} ({size.neurons:g})" for size in sizes)
    raise SizeError(f"there is no size `{name}`; the model has {known}")


def parse_blocks(sizes: Sequence[Size], names: Sequence[str | float], blocks: int) -> Allocation:
    """An allocation from one name or share per block, 0 for a block that is skipped."""
    if len(names) != blocks:
        raise SizeError(f"the allocation names {len(names)} blocks, and the model has {blocks}; give one, or one each")
    chosen = tuple(None if _number(name) == 0 else find_size(sizes, name) for name in names)
    if all(size is None for size in chosen):
        raise SizeError("the allocation skips every block; leave at least one")
    return Allocation(chosen)


def _checked(what: str, shares: Sequence[float], count: int) -> Sequence[float]:
    if len(shares) != count or not shares:
        raise SizeError(f"`{what}` has {len(shares)} shares for {count} sizes; give one for each size, at least one")
    if any(not 0 < share <= 1 for share in shares) or shares[-1] != 1:
        raise SizeError(f"`{what}` is {', '.join(f'{s:g}' for s in shares)}; shares lie above 0 and end with 1")
    if any(one > other for one, other in pairwise(shares)):
        raise SizeError(f"`{what}` is {', '.join(f'{s:g}' for s in shares)}; shares rise from the smallest size on")
    return shares


def _number(name: str | float) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None
