"""Sizes nested in an encoder: what a folder tells of them, and the model that one of them is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from slimformer.anatomy.family import family_of
from slimformer.errors import SizeError, describe
from slimformer.runtime.nesting.cutting import BlockPart, cut
from slimformer.runtime.settings import OUTPUT_DIMENSIONS, Settings
from slimformer.sizes.naming import Naming
from slimformer.sizes.size import units
from slimformer.sizes.table import SIZES, read_naming

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.runtime.building import ModelParts
    from slimformer.sizes.naming import Sized
    from slimformer.sizes.size import Allocation, Size


def at_size(folder: Path, model: ModelParts, size: Sized) -> ModelParts:
    """A nested model at one of its sizes, its first neurons and heads, without the rest of its weights.

    Args:
        folder: Where the table of its sizes lies.
        model: Its largest size, as the file has it.
        size: Such as `S`, a share, one for each block, or a published name.
    """
    if not (folder / SIZES).is_file():
        raise SizeError(f"size `{describe(size)}` is asked for, and `{model.name}` has one size only; leave it out")
    settings = Settings(model.config, model.name)
    if settings.widths_differ():
        raise SizeError(
            f"size `{describe(size)}` is asked for of `{model.name}`, whose blocks have widths of their own; leave out "
            "the engine, or take the size out: slimformer extract"
        )
    neurons, heads = settings.count(family_of(model.kind).ffn_size), settings.count("num_attention_heads", "n_heads")
    chosen = _naming(folder, model).allocation(size)
    smaller = cut(model, [None if each is None else _part(each, neurons, heads) for each in chosen])
    return _narrowed(smaller, chosen, settings.count("hidden_size", "dim"))


def _naming(folder: Path, model: ModelParts) -> Naming:
    """What names mean in a model, of whose blocks some cannot be skipped."""
    family = family_of(model.kind)
    naming = read_naming(folder, Settings(model.config, model.name).count("num_hidden_layers", "n_layers"))
    pinned = [family.blocks_pinned_by is not None] * len(naming.skippable)
    pinned[:1] = [pinned[0] or family.first_block_pinned_by is not None]
    skippable = tuple(may and not held for may, held in zip(naming.skippable, pinned, strict=True))
    return Naming(naming.sizes, skippable, naming.published)


def _part(size: Size, neurons: int, heads: int) -> BlockPart:
    return BlockPart(
        None if size.neurons == 1 else np.arange(units(neurons, size.neurons)),
        None if size.heads == 1 else np.arange(units(heads, size.heads)),
    )


def _narrowed(model: ModelParts, chosen: Allocation, hidden: int) -> ModelParts:
    """The same with as many dimensions of an embedding as the largest size in it has."""
    share = max(size.output for size in chosen if size is not None)
    if share == 1:
        return model
    full = Settings(model.config, model.name).dimensions() or hidden
    return replace(model, config={**model.config, OUTPUT_DIMENSIONS: units(full, share)})
