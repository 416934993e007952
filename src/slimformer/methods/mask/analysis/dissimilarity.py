"""How far apart the masks of two tasks, or of two seeds, are (Fig. 5)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from slimformer import artifact, models
from slimformer.anatomy import Anatomy
from slimformer.artifact.checks import architecture_of
from slimformer.artifact.layout import MASK
from slimformer.artifact.storage.mask import assemble, check_shapes
from slimformer.artifact.storage.mask_base import find_base
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.errors import ArtifactError, ConfigError
from slimformer.files import as_path
from slimformer.methods.mask.config import ROLES, MaskConfig
from slimformer.methods.mask.scores import Masking
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

    #: Block → role of a matrix in it → bits.
    Bits = dict[int, dict[str, Tensor]]
    #: The bits of a mask, and those its run began with.
    Pair = tuple[Bits, Bits]


def mask_dissimilarity(folders: Mapping[str, str | Path], matrices: str = ",".join(ROLES)) -> Finding[dict[str, Any]]:
    """Compare masks on one base pair by pair, block by block.

    For two masks, `s = ‖M1 - M2‖₁ / (‖M1 - M1init‖₁ + ‖M2 - M2init‖₁)` over the bits of a block: 0 where both came
    to the same mask, 1 where nothing that one changed was changed by the other from the same start. Blocks in which
    neither run changed a bit have no such number and are left out.

    Args:
        folders: Name → folder of a mask.
        matrices: Matrices whose bits count, joined by commas as in the settings of masking: `o` for Fig. 5 of the
            paper, which shows W_O. Each of them is compared alone too.
    """
    names = _checked(matrices)
    masks = {name: _bits(as_path(folder)) for name, folder in folders.items()}
    if len(masks) < 2:
        raise ArtifactError(f"{len(masks)} masks were given; give two or more to compare")
    pairs = {f"{one} / {other}": (masks[one], masks[other]) for one, other in itertools.combinations(masks, 2)}
    together = {pair: _compare(*both, names) for pair, both in pairs.items()}
    for pair, values in together.items():
        if not values:
            raise ArtifactError(f"training changed no bit of the masks {pair} in a block of both; train them longer")
    alone = {pair: {name: _compare(*both, (name,)) for name in names} for pair, both in pairs.items()}
    lines = [Series(pair, [float(block) for block in each], [*each.values()]) for pair, each in together.items()]
    svg = curves([(f"dissimilarity s of {', '.join(names)}", lines)], x_label="block")
    caption = "Bits in which two masks differ, as a share of those that both changed since the start."
    data = {"matrices": list(names), "dissimilarity": together, "by_matrix": alone}
    return Finding(data, Figure("How far apart masks are", svg, caption))


def _checked(matrices: str) -> tuple[str, ...]:
    names = tuple(matrices.replace(" ", "").split(","))
    for name in names:
        if name not in ROLES:
            raise ConfigError(f"`matrices` is `{matrices}`, and blocks have no `{name}`; known: {', '.join(ROLES)}")
    return names


def _compare(first: Pair, second: Pair, names: Sequence[str]) -> dict[int, float]:
    """The dissimilarity of two masks in each block, over some of its matrices."""
    roles = [role for name in names for role in ROLES[name]]
    values = {}
    for block in sorted(first[0].keys() & second[0].keys()):
        one, one_init, other, other_init = (
            {role: bits for role, bits in mask[block].items() if role in roles} for mask in (*first, *second)
        )
        changed = _distance(one, one_init) + _distance(other, other_init)
        if changed:
            values[block] = _distance(one, other) / changed
    return values


def _bits(folder: Path) -> Pair:
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
    return _by_block(ended, model), _by_block(masking.bits, model)


def _by_block(bits: Mapping[str, Tensor], model: PreTrainedModel) -> Bits:
    """The bits of each matrix of each block, those of fused ones apart."""
    blocks: Bits = {}
    for block in Anatomy.of(model).blocks:
        for role, matrix in block.matrices.items():
            stored = bits.get(f"{model.base_model_prefix}.{matrix.path}.weight")
            if stored is not None:
                read = stored.mT if matrix.transposed else stored
                blocks.setdefault(block.index, {})[role] = read if matrix.part is None else matrix.part.take(read)
    return blocks


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return float(sum(int((one[name] != other[name]).sum()) for name in one.keys() & other.keys()))
