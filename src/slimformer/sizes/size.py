"""Sizes by name and share, and allocations: one size for each block, or none where the block is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING

from slimformer.errors import SizeError, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Shares of the neurons in MatFormer (arXiv 2310.07707, section 3): 0.5, 1, 2 and 4 times the hidden width.
RATIOS = (0.125, 0.25, 0.5, 1.0)
#: Names of as many sizes, smallest first; more sizes are named by their shares.
NAMES = (("XL",), ("S", "XL"), ("S", "M", "XL"), ("S", "M", "L", "XL"), ("XS", "S", "M", "L", "XL"))

#: Sizes of one model at most: each is evaluated and probed, so a table of very many would never be done.
MOST_SIZES = 64


@dataclass(frozen=True)
class Size:
    """One nested size: the shares of a block that it uses.

    Args:
        name: S, M, L, XL, or the share of neurons.
        neurons: Share of the feed-forward neurons.
        heads: Share of the key-value heads, each with the query heads it serves.
        depth: Share of the blocks that run where this size is asked for by name.
        output: Share of the dimensions of an embedding; an allocation has those of its largest size.
    """

    name: str
    neurons: float
    heads: float = 1.0
    depth: float = 1.0
    output: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or "," in self.name or _number(self.name) == 0:
            raise SizeError(
                f"a size is called `{describe(self.name)}`; give a name such as `S`, which is no 0 and has no comma"
            )
        for what in SHARES:
            _check_share(what, getattr(self, what))


def units(full: int, share: float) -> int:
    """Whole units in a share of them, at least one."""
    return max(1, round(full * share))


@dataclass(frozen=True)
class Allocation:
    """What each block uses: one of the sizes, or None where the block is skipped."""

    blocks: tuple[Size | None, ...]

    def __post_init__(self) -> None:
        fits = isinstance(self.blocks, tuple) and all(size is None or isinstance(size, Size) for size in self.blocks)
        if not fits:
            raise SizeError(
                f"an allocation has the blocks `{describe(self.blocks)}`; give a tuple with a `Size`, or None, for each"
            )

    def __str__(self) -> str:
        """As the command line takes it: one name where all blocks agree, else one per block, 0 for skipped."""
        return self.blocks[0].name if len(set(self.blocks)) == 1 and self.blocks[0] else self.by_block

    @property
    def by_block(self) -> str:
        """One name for each block, 0 for skipped, also where all agree."""
        return ",".join(size.name if size else "0" for size in self.blocks)

    def __iter__(self) -> Iterator[Size | None]:
        return iter(self.blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def replaced(self, index: int, size: Size | None) -> Allocation:
        """The same with another size for one block."""
        return Allocation((*self.blocks[:index], size, *self.blocks[index + 1 :]))


#: What a size has a share of.
SHARES = tuple(field.name for field in fields(Size) if field.name != "name")


def name_sizes(
    neurons: Sequence[float] = RATIOS,
    heads: Sequence[float] | None = None,
    depth: Sequence[float] | None = None,
    output: Sequence[float] | None = None,
) -> tuple[Size, ...]:
    """Sizes of these shares, smallest first.

    Args:
        neurons: Shares of the feed-forward neurons, rising to 1.
        heads: Shares of the heads for each of them; all heads everywhere, if none are given.
        depth: Shares of the blocks for each of them; all blocks everywhere, if none are given.
        output: Shares of an embedding's dimensions for each of them; all everywhere, if none are given.
    """
    shares = dict(zip(SHARES, (neurons, heads, depth, output), strict=True))
    for what, values in shares.items():
        if (values is not None or what == "neurons") and (isinstance(values, str) or not isinstance(values, Sequence)):
            raise SizeError(f"`{what}` is `{describe(values)}`; give a list of shares, rising to 1")
    if len(neurons) > MOST_SIZES:
        raise SizeError(f"there are {len(neurons):,} sizes; give {MOST_SIZES} at most")
    columns = {what: _checked(what, values, len(neurons)) for what, values in shares.items() if values is not None}
    if any(one == other for one, other in pairwise(zip(*columns.values(), strict=True))):
        raise SizeError(f"two sizes are alike in {', '.join(columns)}; give each another share of something")
    names = NAMES[len(neurons) - 1] if len(neurons) <= len(NAMES) else [f"{share:g}" for share in neurons]
    every = (1.0,) * len(neurons)
    rows = zip(names, *(columns.get(share, every) for share in SHARES), strict=True)
    return tuple(Size(*row) for row in rows)


def check_sizes(sizes: Sequence[Size]) -> None:
    """Refuse sizes that are not nested: shares rise to 1, and no two are alike."""
    name_sizes(*([getattr(size, share) for size in sizes] for share in SHARES))


def find_size(sizes: Sequence[Size], name: str | float, others: Sequence[str] = ()) -> Size:
    """A size by its name, in capitals or not, or by its share of neurons; `others` are names that are known too."""
    for size in sizes:
        if isinstance(name, str) and name.strip().upper() == size.name.upper():
            return size
    share = _number(name)
    for size in sizes:
        if share is not None and abs(size.neurons - share) < 1e-9:
            return size
    known = ", ".join([*(f"{size.name} ({size.neurons:g})" for size in sizes), *others])
    raise SizeError(f"there is no size `{describe(name)}`; the model has {known}")


def parse_blocks(sizes: Sequence[Size], names: Sequence[str | float], blocks: int) -> Allocation:
    """An allocation from one name or share per block, 0 for a block that is skipped."""
    if isinstance(names, str | bytes) or not isinstance(names, Sequence):
        raise SizeError(f"`{describe(names)}` names no size; give a name such as `S`, a share, or one for each block")
    if len(names) != blocks:
        raise SizeError(f"the allocation names {len(names)} blocks, and the model has {blocks}; give one, or one each")
    chosen = tuple(None if _number(name) == 0 else find_size(sizes, name) for name in names)
    if all(size is None for size in chosen):
        raise SizeError("the allocation skips every block; leave at least one")
    return Allocation(chosen)


def _check_share(what: str, share: float) -> None:
    if not isinstance(share, Real) or not 0 < share <= 1:
        raise SizeError(f"`{what}` of a size is `{describe(share)}`; a share lies above 0 and is 1 at most")


def _checked(what: str, shares: Sequence[float], count: int) -> Sequence[float]:
    if len(shares) != count or not shares:
        raise SizeError(f"`{what}` has {len(shares)} shares for {count} sizes; give one for each size, at least one")
    if not all(isinstance(share, Real) for share in shares):
        raise SizeError(f"`{what}` is `{describe(shares)}`; shares are numbers")
    if any(not 0 < share <= 1 for share in shares) or shares[-1] != 1:
        raise SizeError(f"`{what}` is {', '.join(f'{s:g}' for s in shares)}; shares lie above 0 and end with 1")
    if any(one > other for one, other in pairwise(shares)):
        raise SizeError(f"`{what}` is {', '.join(f'{s:g}' for s in shares)}; shares rise from the smallest size on")
    return shares


def _number(name: str | float) -> float | None:
    try:
        return float(name)
    except (OverflowError, TypeError, ValueError):
        return None
