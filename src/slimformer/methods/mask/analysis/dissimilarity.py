"""How far apart the masks of two tasks, or of two seeds, are (Fig. 5)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from slimformer import artifact, models
from slimformer.anatomy import Anatomy
from slimformer.artifact.layout import MASK
from slimformer.artifact.loading import architecture_of
from slimformer.artifact.storage.mask import assemble, check_shapes
from slimformer.artifact.storage.mask_base import find_base
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.errors import ArtifactError
from slimformer.files import as_path
from slimformer.methods.mask.config import MaskConfig
from slimformer.methods.mask.scores import Masking
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    #: Block → names of weights inside it → bits.
    Bits = dict[int, dict[str, Tensor]]


def mask_dissimilarity(folders: Mapping[str, str | Path]) -> Finding[dict[str, Any]]:
    """Compare masks on one base pair by pair, block by block.

    For two masks, `s = ‖M1 - M2‖₁ / (‖M1 - M1init‖₁ + ‖M2 - M2init‖₁)` over the bits of a block: 0 where both came
    to the same mask, 1 where nothing that one changed was changed by the other from the same start. Blocks in which
    neither run changed a bit have no such number and are left out.

    Args:
        folders: Name → folder of a mask.
    """
    masks = {name: _bits(as_path(folder)) for name, folder in folders.items()}
    if len(masks) < 2:
        raise ArtifactError(f"{len(masks)} masks were given; give two or more to compare")
    data, lines = {}, []
    for (one, (first, first_init)), (other, (second, second_init)) in itertools.combinations(masks.items(), 2):
        pair = f"{one} / {other}"
        changed = {
            block: _distance(first[block], first_init[block]) + _distance(second[block], second_init[block])
            for block in sorted(first.keys() & second.keys())
        }
        values = {block: _distance(first[block], second[block]) / bits for block, bits in changed.items() if bits}
        if not values:
            raise ArtifactError(f"training changed no bit of the masks {pair} in a block of both; train them longer")
        data[pair] = values
        lines.append(Series(pair, [float(block) for block in values], [*values.values()]))
    svg = curves([("dissimilarity s", lines)], x_label="block")
    caption = "Bits in which two masks differ, as a share of those that both changed since the start."
    return Finding({"dissimilarity": data}, Figure("How far apart masks are", svg, caption))


def _bits(folder: Path) -> tuple[Bits, Bits]:
    """The bits of a mask, and those its run began with."""
    file, step = MaskFile.read(folder / MASK), artifact.read_manifest(folder).steps[-1]
    if file.kept or step.method != "mask":
        raise ArtifactError(
            f"the mask in `{folder}` removes neurons or heads, or was not trained by `slimformer mask`; "
            "give masks of single weights"
        )
    base, architecture = find_base(file, folder), architecture_of(folder)
    model = assemble(base, architecture, models.load_config(folder))
    check_shapes(file, model, str(folder))
    settings = {name: value for name, value in step.config.items() if name in MaskConfig.model_fields}
    if settings.get("top_down") is not None or settings.get("bottom_up") is not None:
        del settings["blocks"]
    masking = Masking.start(model, MaskConfig.make(settings))
    masking.end(model)
    ended = {name: file.mask(name).bool() for name in file.bits}
    paths = {f"{model.base_model_prefix}.{block.path}.": block.index for block in Anatomy.of(model).blocks}
    return _by_block(ended, paths), _by_block(masking.bits, paths)


def _by_block(bits: Mapping[str, Tensor], paths: Mapping[str, int]) -> Bits:
    found: Bits = {}
    for name, each in bits.items():
        for path, block in paths.items():
            if name.startswith(path):
                found.setdefault(block, {})[name] = each
    return found


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return float(sum(int((one[name] != other[name]).sum()) for name in one.keys() & other.keys()))
