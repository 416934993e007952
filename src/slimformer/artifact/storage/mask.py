"""Masks on their base: what a model differs by from its base, and the base with the difference put on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.artifact.layout import MASK
from slimformer.artifact.provenance import describe_base
from slimformer.artifact.storage.handler import Storage, as_code, storage_of
from slimformer.artifact.storage.mask_base import (
    UNKNOWN,
    base_processor,
    find_base,
    fingerprint_of,
    full_size,
    is_of_base,
    mask_config,
    names_in_base,
    processor_sums,
    source_of,
)
from slimformer.artifact.storage.mask_file import BaseRecord, MaskFile, with_source
from slimformer.artifact.storage.mask_identity import BaseIdentity
from slimformer.artifact.storage.plain import WITH_SLIMFORMER, save_processor
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.artifact.manifest import Manifest
    from slimformer.artifact.storage.handler import Loader
    from slimformer.artifact.storage.mask_file import DrawnRecord, Unit

    Kept = Mapping[int, Mapping[Unit, Tensor]]

#: Weights that a base lacks are drawn with this seed when it is loaded to be compared, so that no model that was
#: trained has the same ones by chance and each of them is found to differ.
OTHER_SEED = 0x5EED_0F_0DD


class MaskStorage(Storage):
    """What a model differs by from its base: one bit per masked weight, and what the base does not have.

    A weight that is the base's is not stored; one that is the base's times its bits is stored as bits; anything else,
    such as the head, is stored whole. So the folder is small and cannot be loaded without the base.

    Args:
        bits: Name of a weight → which of its entries the run kept, as booleans; a weight that is not listed but whose
            values are the base's or 0 gets bits that say so.
        kept: Which neurons and heads of the base the model still has, where some were removed.
        drawn: How the masked weights of a head were drawn, which the base does not have.
    """

    name = "mask"
    no_base = "is a mask on a base and no checkpoint; merge the two first: slimformer merge {name} --out PLAIN"
    weights = (MASK,)
    needs_base = True
    relation = "adapter"

    def __init__(
        self,
        bits: Mapping[str, Tensor] | None = None,
        kept: Kept | None = None,
        drawn: Mapping[str, DrawnRecord] | None = None,
    ) -> None:
        self.bits = bits or {}
        self.kept = kept or {}
        self.drawn = drawn or {}

    def write(self, stage: Path, model: PreTrainedModel, processor: Any, base: Any) -> None:
        """Write the mask file and the config; refused where base and bits do not give the model back exactly."""
        from slimformer.artifact.converting.packed_base import plain_config
        from slimformer.formats import gaps

        if not isinstance(base, str | Path):
            raise ArtifactError(
                f"a mask needs the base it was made from, and `base` is `{base}`; give its name or folder"
            )
        assembled = assemble(base, type(model), model.config)
        draw_head(assembled, self.drawn, str(stage))
        narrow(assembled, self.kept, str(stage))
        known = names_in_base(base, type(model)) | self.drawn.keys()
        bits, whole = differences(model, assembled, known, self.bits)
        own_processor = processor is not None and not is_of_base(processor, base)
        record = BaseRecord(
            name=describe_base(base).name,
            source=source_of(base),
            fingerprint=fingerprint_of(base),
            identity=BaseIdentity.of(base, [name for name in model.state_dict() if name not in whole], type(model)),
            processor={} if own_processor or processor is None else processor_sums(base),
        )
        shapes = {name: tuple(each.shape) for name, each in bits.items()}
        coded = {name: gaps.encode(each) for name, each in bits.items()}
        file = MaskFile(record, coded, shapes, self.kept, whole, self.drawn)
        file.write(stage / MASK)
        _check_exact(model, put_on(replace(file, kept={}), assembled, ""))
        config = plain_config(model)
        config.architectures = [type(model).__name__]
        config.dtype = str(model.dtype).removeprefix("torch.")
        config.save_pretrained(stage)
        if own_processor:
            save_processor(stage, processor)

    def read(
        self,
        folder: Path,
        loader: Loader,
        *,
        dtype: str | torch.dtype | None,
        base: str | Path | None,
        cast_base: bool = False,
    ) -> PreTrainedModel:
        """Find the base, check it, and put the mask on."""
        import torch

        file = MaskFile.read(folder / MASK)
        place = find_base(file, folder, base, cast=cast_base)
        assembled = assemble(place, loader[0], mask_config(folder))
        check_whole(file, assembled, names_in_base(place, loader[0]) | file.drawn.keys(), str(folder))
        draw_head(assembled, file.drawn, str(folder))
        model = put_on(file, assembled, str(folder))
        if dtype not in (None, "auto"):
            model.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)  # type: ignore[arg-type]
        return model

    def processor(self, folder: Path, base: str | Path | None, *, cast_base: bool = False) -> Any:
        """That of the base."""
        file = MaskFile.read(folder / MASK)
        if not file.base.processor:
            return None
        return base_processor(file.base, find_base(file, folder, base, cast=cast_base))

    def base_files(self, folder: Path, base: str | Path | None, *, cast_base: bool = False) -> list[Path]:
        """Those of the base, which is stored once however many masks there are."""
        place = Path(models.resolve(find_base(MaskFile.read(folder / MASK), folder, base, cast=cast_base)))
        return storage_of(place).tensor_files(place) if place.is_dir() else []

    def public(self, folder: Path) -> dict[str, bytes]:
        """The mask without the path of its base; a Hub name stays, and is where the base is found."""
        source = MaskFile.read(folder / MASK).base.source
        return {MASK: with_source(folder / MASK, UNKNOWN)} if Path(source).is_absolute() else {}

    def card(self, manifest: Manifest) -> str:
        """On its base, or merged with it."""
        name = "its base" if manifest.base is None else as_code(manifest.base.name)
        return "\n\n".join(
            [
                f"This is a mask: one bit for each masked weight of {name}, and the head. It is loaded on that base:",
                WITH_SLIMFORMER,
                "`slimformer merge path/to/this/folder --out plain` makes a checkpoint that needs no base.",
            ]
        )


def assemble(base: str | Path, architecture: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """A base under the head of a class, at its full size; what it has no weights for is drawn anew."""
    import torch

    from slimformer.artifact.converting.packed_base import load_under

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(OTHER_SEED)
        return load_under(base, architecture, full_size(config, models.load_config(base)))


def put_on(file: MaskFile, model: PreTrainedModel, where: str) -> PreTrainedModel:
    """Turn an assembled base into the model a mask file describes, in place."""
    import torch

    from slimformer.artifact.converting.packed_base import note_masked

    narrow(model, file.kept, where)
    check_shapes(file, model, where)
    state = model.state_dict()
    with torch.no_grad():
        for name in file.bits:
            state[name].mul_(file.mask(name).to(state[name].device))
        for name, tensor in file.whole.items():
            state[name].copy_(tensor)
    note_masked(model, {name: file.mask(name).bool() for name in file.bits})
    return model


def draw_head(model: PreTrainedModel, drawn: Mapping[str, DrawnRecord], where: str) -> None:
    """Give a model the weights its head was drawn with."""
    import torch

    from slimformer.formats.drawn import draw

    state = model.state_dict()
    with torch.no_grad():
        for name, record in drawn.items():
            if name not in state:
                raise ArtifactError(f"the mask in `{where}` is for `{name}`, which the model has not; copy it again")
            state[name].copy_(draw(state[name].shape, record.seed, record.deviation))


def check_whole(file: MaskFile, assembled: PreTrainedModel, in_base: set[str], where: str) -> None:
    """Refuse a mask file that lacks what its base does not have, such as the head: it would be drawn at random."""
    state = assembled.state_dict()
    known = {state[name].data_ptr() for name in state if name in in_base or name in file.whole}
    for name, tensor in state.items():
        if tensor.data_ptr() not in known:  # a tied weight is known under one of its names
            raise ArtifactError(f"neither the base nor the mask in `{where}` has `{name}`; copy the mask again")


def check_shapes(file: MaskFile, model: PreTrainedModel, where: str) -> None:
    """Refuse a mask file that does not fit a model, narrowed if need be."""
    state = model.state_dict()
    for name, shape in {**file.shapes, **{name: tuple(each.shape) for name, each in file.whole.items()}}.items():
        if name not in state or tuple(state[name].shape) != shape:
            found = "there is no such weight" if name not in state else f"it has {list(state[name].shape)} there"
            raise ArtifactError(
                f"the mask in `{where}` is for `{name}` of {list(shape)}, and in a {type(model).__name__} on this base "
                f"{found}; the mask belongs to another model"
            )


def narrow(model: PreTrainedModel, kept: Kept, where: str) -> None:
    """Remove for good the neurons and heads that are not kept."""
    from slimformer.anatomy import Anatomy

    blocks = Anatomy.of(model).blocks if kept else ()
    for number, units in kept.items():
        for unit, flags in units.items():
            there = None
            if number < len(blocks):
                there = blocks[number].ffn_width if unit == "neurons" else blocks[number].key_value_heads
            if there != flags.numel():
                raise ArtifactError(
                    f"the mask in `{where}` is for {flags.numel()} {unit} in block {number}, and the base has "
                    f"{there or 'no such block'}; the mask belongs to another model"
                )
            numbers = flags.nonzero().flatten().tolist()
            (blocks[number].keep_neurons if unit == "neurons" else blocks[number].keep_heads)(numbers)


def differences(
    model: PreTrainedModel, assembled: PreTrainedModel, in_base: set[str], bits: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a model differs by from its base: bits by name of the weight, and tensors that are to be stored whole.

    Args:
        model: The model.
        assembled: Its base under the same head.
        in_base: Names of weights that the base has.
        bits: The bits of a run by name of the weight.
    """
    masks: dict[str, Tensor] = {}
    whole: dict[str, Tensor] = {}
    base_state = assembled.state_dict()
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tuple(tensor.shape))  # a tied weight counts once
        if place in seen or (name not in bits and name in in_base and _same_bits(tensor, base_state[name])):
            continue
        seen.add(place)
        mask = bits[name].to(tensor.device) if name in bits else tensor == base_state[name]
        # What a product with 0 and 1 gives, signs of zeros included, is compared, as it is what loading computes.
        if name in in_base and _same_bits(tensor, base_state[name] * mask):
            masks[name] = mask
        elif name in bits and name in in_base:
            raise ArtifactError(
                f"`{name}` of the model is not that of the base times the bits of the run; nothing was written, "
                "give the base the run started from"
            )
        else:
            whole[name] = tensor
    return masks, whole


def _check_exact(model: PreTrainedModel, again: PreTrainedModel) -> None:
    theirs = again.state_dict()
    for name, tensor in model.state_dict().items():
        if not _same_bits(tensor, theirs[name]):
            raise ArtifactError(
                f"`{name}` of the base with its mask is not that of the model in memory; nothing was written, "
                "give the base the model was made from"
            )


def _same_bits(one: Tensor, other: Tensor) -> bool:
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = (each.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(one, other)
