"""Merging: a mask and its base as one checkpoint that needs no base, packed where that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.artifact.converting.filling import fill_up
from slimformer.artifact.layout import MASK
from slimformer.artifact.manifest import Manifest, Step, read_manifest
from slimformer.artifact.opening.engines import load
from slimformer.artifact.saving import save
from slimformer.artifact.staging import check_place
from slimformer.artifact.storage.mask import assemble, narrow
from slimformer.artifact.storage.mask_base import find_base
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.artifact.storage.precision import round_weights
from slimformer.errors import ArtifactError
from slimformer.files import as_path
from slimformer.models import located

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

    from slimformer.artifact.storage.mask_file import Unit
    from slimformer.models.settings import Store


def merge(
    folder: str | Path,
    out: str | Path,
    *,
    base: str | Path | None = None,
    overwrite: bool = False,
    command: str | None = None,
    cast_base: bool = False,
    check: bool = True,
    store: Store | None = None,
) -> Manifest:
    """Write the model of a mask as a plain checkpoint, or packed as its base is.

    Where blocks were narrowed differently, which a plain checkpoint has no way to say, narrow blocks are filled up
    with neurons and heads that count for nothing until all are as wide as the widest.

    Args:
        folder: The folder of a mask.
        out: Where the checkpoint goes.
        base: Where the base is, if not where it was when the mask was saved.
        overwrite: Replace an artifact that is there.
        command: The command line, for the record.
        cast_base: Whether the base may have been cast to 16 bits, which changes answers a little.
        check: Whether the mask must answer as recorded at saving; its sums are compared in any case.
        store: What weights are stored as: `float32`, `half` or `bfloat16`; by default as they are in memory.
    """
    path = located(folder)
    if as_path(out).resolve() == path.resolve():
        raise ArtifactError(f"`--out` is the mask `{folder}` itself, which would be lost; give another folder")
    if base is not None and as_path(out).resolve() == as_path(base).resolve():
        raise _over_base(out)
    check_place(out, overwrite)
    storage = read_manifest(path).model.storage
    if storage.startswith("packed"):
        raise ArtifactError(
            f"artifact `{folder}` is packed and no mask; make a plain checkpoint of it with `slimformer unpack`"
        )
    if storage != "mask":
        raise ArtifactError(f"artifact `{folder}` is no mask; it is a checkpoint already, there is nothing to merge")
    loaded = load(path, base=base, cast_base=cast_base, check=check)
    file = MaskFile.read(path / MASK)
    model, place = loaded.model, find_base(file, path, base, cast=cast_base)
    if as_path(out).resolve() == as_path(place).resolve():
        raise _over_base(out)
    if store is not None and getattr(model, "is_quantized", False):
        raise ArtifactError(
            f"`--store` is `{store}`, and the base of mask `{folder}` is packed, as is what comes of it; leave it out"
        )
    if file.kept:
        model = _agreeing(model, file, place)
    rounded = round_weights(model, store)
    return save(
        out,
        model,
        step=Step(method="merge", config={} if store is None else {"store": store}),
        processor=loaded.processor,
        base=folder,
        base_manifest=loaded.manifest,
        metrics=loaded.manifest.metrics,
        task=loaded.manifest.task,
        overwrite=overwrite,
        command=command,
        rounded=rounded,
    )


def _over_base(out: str | Path) -> ArtifactError:
    return ArtifactError(f"`--out` is `{out}`, the base of the mask, which would be lost; give another folder")


def _agreeing(model: PreTrainedModel, file: MaskFile, base: str) -> PreTrainedModel:
    """A model of blocks that are all of one width and computes the same."""
    from slimformer.anatomy import Anatomy

    wide = assemble(base, type(model), model.config)
    blocks = Anatomy.of(wide).blocks
    sizes: dict[Unit, list[int]] = {
        "neurons": [block.ffn_width for block in blocks],
        "heads": [block.key_value_heads for block in blocks],
    }
    # A config says how many heads there are only together with their width; where it holds none, all are filled up.
    free = {"neurons": True, "heads": getattr(wide.config, "head_dim", None) is not None}
    filled: dict[int, dict[Unit, Tensor]] = {}
    for unit, full in sizes.items():
        left = [_count(file, number, unit, size) for number, size in enumerate(full)]
        width = max(left) if free[unit] else full[0]
        for number, size in enumerate(full):
            flags = file.kept.get(number, {}).get(unit, _all(size))
            filled.setdefault(number, {})[unit] = _filled(flags, width)
    narrow(wide, filled, base)
    places = {
        number: {unit: _places(file, number, unit, flags) for unit, flags in units.items()}
        for number, units in filled.items()
    }
    fill_up(model, wide, places)
    return wide


def _places(file: MaskFile, number: int, unit: Unit, flags: Tensor) -> Tensor:
    """Where the units that a mask keeps lie among those that a block is filled up to."""
    kept = file.kept.get(number, {}).get(unit, _all(flags.numel()))
    return kept[flags].nonzero().flatten()


def _count(file: MaskFile, number: int, unit: Unit, size: int) -> int:
    flags = file.kept.get(number, {}).get(unit)
    return size if flags is None else int(flags.sum())


def _all(size: int) -> Tensor:
    import torch

    return torch.ones(size, dtype=torch.bool)


def _filled(flags: Tensor, width: int) -> Tensor:
    """As many flags set as asked for: those that are, and the first of the others."""
    filled = flags.clone()
    filled[(~flags).nonzero().flatten()[: width - int(flags.sum())]] = True
    return filled
