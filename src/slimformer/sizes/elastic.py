"""Models of which any nested size can be used: all in one set of weights, each in its own thread."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.anatomy import Anatomy, unwrap
from slimformer.anatomy.block import pinned_by, refuse_pinned_heads
from slimformer.errors import SizeError
from slimformer.sizes import decoding, saving
from slimformer.sizes.naming import Naming
from slimformer.sizes.size import Allocation, Size, check_sizes, name_sizes, units
from slimformer.views import (
    Extent,
    bake,
    cut_output,
    restore_output,
    skip_block,
    slice_heads,
    slice_neurons,
    strip,
)
from slimformer.views.slice import is_mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from slimformer.sizes.naming import Sized
    from slimformer.views import Width

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

    def __init__(
        self, sizes: Sequence[Size], blocks: Sequence[NestedBlock], extent: Extent, output: Width | None = None
    ) -> None:
        self.sizes = tuple(sizes)
        self.blocks = tuple(blocks)
        self.extent = extent
        #: Allocations that have names of their own.
        self.published: dict[str, Allocation] = {}
        self.naming = Naming(self.sizes, tuple(block.depth is not None for block in self.blocks), self.published)
        #: Dimensions of the embeddings, where these are nested.
        self.output = output

    @classmethod
    def of(cls, model: nn.Module) -> Elastic:
        """The sizes of a model that was made elastic."""
        elastic = _holder(model).__dict__.get(_ELASTIC)
        if elastic is None:
            raise SizeError(f"this {type(unwrap(model)).__name__} has one size only; make it elastic first")
        return elastic  # type: ignore[no-any-return]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sizes, smallest first."""
        return self.naming.names

    @property
    def largest(self) -> Allocation:
        """The whole model."""
        return self.naming.largest

    def allocation(self, size: Sized) -> Allocation:
        """What a size means block by block; an allocation is checked and returned as it is."""
        return self.naming.allocation(size)

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

    def share_cache(self, one: Sized, other: Sized | None = None) -> None:
        """Raise where two sizes, or a size and the one in use, cannot go on from one cache of keys and values."""
        pair = [self._values(self.allocation(one))]
        pair.append(self.extent.value if other is None else self._values(self.allocation(other)))
        for index in range(len(self.blocks)):
            heads = [self._cached_heads(index, values) for values in pair]
            if heads[0] != heads[1]:
                names = f"both `{one}` and " + ("the size in use" if other is None else f"`{other}`")
                counts = " and ".join("none (skipped)" if count is None else str(count) for count in heads)
                raise SizeError(
                    f"one cache cannot serve {names}: block {index} has key-value heads {counts}; "
                    "choose sizes with the same heads that run the same blocks"
                )

    def check_draft(self, size: Sized) -> None:
        """Raise where a size cannot draft for the one in use, or has nothing less than it, which saves no time."""
        self.share_cache(size)
        pairs = zip(self._values(self.allocation(size)), self.extent.value, strict=True)
        if all(value >= used for value, used in pairs):
            raise SizeError(f"`--draft` is `{size}`, which is not smaller than the size in use; leave it out")

    def check_cache(self, cache: Any) -> None:
        """Raise where the size in use cannot go on from a cache of keys and values that another one has filled."""
        layers = getattr(cache, "layers", [])
        for index, layer in zip(range(len(self.blocks)), layers, strict=False):
            keys: Tensor | None = getattr(layer, "keys", None)
            if keys is None or not keys.numel():
                continue
            heads = self._cached_heads(index, self.extent.value)
            held = None if is_mark(keys) else keys.shape[1]
            if (heads is None) != (held is None) or (heads and heads != held):
                counts = " and ".join("none (skipped)" if each is None else str(each) for each in (held, heads))
                raise SizeError(
                    f"the cache cannot serve the size in use: block {index} has key-value heads {counts}; go on with a "
                    "size of the same heads that runs the same blocks, or begin with a new cache"
                )

    def _cached_heads(self, index: int, values: Sequence[int]) -> int | None:
        """Key-value heads of a block; None where it is skipped."""
        block = self.blocks[index]
        if block.depth is not None and values[block.depth.index] == 0:
            return None
        return 0 if block.heads is None else values[block.heads.index]

    def _values(self, allocation: Allocation) -> tuple[int, ...]:
        """An allocation as the extent holds it."""
        values = list(self.extent.full)
        for block, size in zip(self.blocks, allocation, strict=True):
            if size is None:
                if block.depth is not None:
                    values[block.depth.index] = 0
                continue
            values[block.neurons.index] = units(block.neurons.full, size.neurons)
            if block.heads is not None:
                values[block.heads.index] = units(block.heads.full, size.heads)
        if self.output is not None:
            share = max(size.output for size in allocation if size is not None)
            values[self.output.index] = units(self.output.full, share)
        return tuple(values)


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
    saving.refuse_adapters(plain)
    chosen = _sizes(sizes)
    heads = heads or any(size.heads < 1 for size in chosen)
    skip = skip or any(size.depth < 1 for size in chosen)
    anatomy = Anatomy.of(plain)
    if heads:
        refuse_pinned_heads(anatomy.family)  # before anything is nested
    extent = Extent()
    output = cut_output(plain, extent) if any(size.output < 1 for size in chosen) else None
    blocks = [_nest(block, extent, heads, skip) for block in anatomy.blocks]
    elastic = plain.__dict__[_ELASTIC] = Elastic(chosen, blocks, extent, output)
    decoding.install(plain)
    saving.install(plain)
    return elastic


def extract(model: nn.Module, size: Sized) -> nn.Module:
    """A model of its own that computes what an elastic one computes at a size, without the rest of its weights."""
    saving.refuse_adapters(model)
    with Elastic.of(model).at(size):
        return bake_size(copy.deepcopy(unwrap(model)))


def bake_size(model: nn.Module) -> nn.Module:
    """Turn an elastic model, and whatever views it has, for good into what it is at the size in use."""
    plain = _holder(model)
    Elastic.of(plain)
    forget(plain)
    return bake(plain)


def is_elastic(model: nn.Module) -> bool:
    """Whether a model has nested sizes."""
    return _ELASTIC in _holder(model).__dict__


def make_plain(model: nn.Module) -> nn.Module:
    """Take the sizes off an elastic model, which is its largest size then and nothing else."""
    saving.refuse_adapters(model)
    return take_off(model)


def take_off(model: nn.Module) -> nn.Module:
    """Take the sizes off an elastic model and leave the adapters that stand on it."""
    plain = _holder(model)
    Elastic.of(plain)
    forget(plain)
    strip(plain)
    restore_output(plain)
    return plain


def forget(model: nn.Module) -> None:
    """Take off what an elastic model has beside its views."""
    del model.__dict__[_ELASTIC]
    decoding.uninstall(model)
    saving.uninstall(model)


def _holder(model: nn.Module) -> nn.Module:
    """The model of Transformers inside wrappers, those of PEFT too."""
    plain: Any = unwrap(model)
    inner: nn.Module = plain.get_base_model() if hasattr(plain, "get_base_model") else plain
    return inner


def _nest(block: Any, extent: Extent, heads: bool, skip: bool) -> NestedBlock:
    return NestedBlock(
        slice_neurons(block, extent),
        slice_heads(block, extent) if heads else None,
        skip_block(block, extent) if skip and pinned_by(block) is None else None,
    )


def _sizes(sizes: Sequence[Size] | Sequence[float] | None) -> tuple[Size, ...]:
    if sizes is None:
        return name_sizes()
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        return name_sizes(sizes)  # which refuses it
    named = tuple(size for size in sizes if isinstance(size, Size))
    if len(named) != len(sizes):
        return name_sizes(sizes)  # type: ignore[arg-type]
    check_sizes(named)
    return named
