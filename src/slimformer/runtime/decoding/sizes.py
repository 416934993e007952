"""Sizes nested in a decoder: the feed-forward neurons of each block that a forward uses, of one set of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slimformer.errors import SizeError
from slimformer.sizes.naming import Naming
from slimformer.sizes.size import check_sizes, units
from slimformer.sizes.table import SIZES, read_naming

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slimformer.runtime.onnx import Array
    from slimformer.sizes.naming import Sized
    from slimformer.sizes.size import Size

#: Neurons of a block are used in part where they are a multiple of as many, which the kernels take at once.
MULTIPLE = 16


class NestedSizes:
    """What the sizes of a decoder are in its blocks.

    Args:
        naming: The sizes by their names.
        neurons: Feed-forward neurons of each block.
    """

    def __init__(self, naming: Naming, neurons: Sequence[int]) -> None:
        self.naming = naming
        self.neurons = tuple(neurons)

    @classmethod
    def of(cls, sizes: Sequence[Size], neurons: Sequence[int]) -> NestedSizes:
        """Sizes as they are given; no block is skipped."""
        check_sizes(sizes)
        return cls(Naming(tuple(sizes), (False,) * len(neurons)), neurons)

    @classmethod
    def read(cls, folder: Path, neurons: Sequence[int]) -> NestedSizes | None:
        """Those that a folder tells of; None where it has no table of them."""
        return cls(read_naming(folder, len(neurons)), neurons) if (folder / SIZES).is_file() else None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sizes, smallest first."""
        return self.naming.names

    def widths(self, size: Sized) -> Array:
        """Neurons of each block at a size, int32."""
        widths = []
        for index, (chosen, full) in enumerate(zip(self.naming.allocation(size), self.neurons, strict=True)):
            if chosen is None or chosen.heads < 1:
                lacks = "is skipped" if chosen is None else "has fewer heads"
                raise SizeError(
                    f"block {index} {lacks} at `{size}`, and the engine keeps keys and values of all heads of all "
                    "blocks; choose a size that differs in neurons alone, or leave the engine out"
                )
            widths.append(units(full, chosen.neurons))
            if widths[-1] < full and full % MULTIPLE:
                raise SizeError(
                    f"block {index} has {full} neurons, and the engine uses a part of them where they are a multiple "
                    f"of {MULTIPLE}; leave the engine out"
                )
        return np.array(widths, np.int32)

    def takes(self, size: Sized) -> bool:
        """Whether a size that there is can be used here."""
        self.naming.allocation(size)
        try:
            self.widths(size)
        except SizeError:
            return False
        return True

    def check_draft(self, draft: Sized, size: Sized | None) -> None:
        """Raise where a size cannot draft for the one in use, the largest if None, or has nothing less than it."""
        used = self.widths(self.naming.largest if size is None else size)
        if (self.widths(draft) >= used).all():
            raise SizeError(f"`--draft` is `{draft}`, which is not smaller than the size in use; leave it out")
