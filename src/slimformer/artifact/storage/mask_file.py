"""`mask.safetensors`: what one task changes of a base, one bit per masked weight or less.

The bits of a matrix are those of the weight's own order, written by `slimformer.formats.gaps`. Beside them are the
neurons and heads that are kept, one bit each, and the few tensors a base does not have, such as the head. The header
says which base they belong to and holds a sum over everything, itself included.

Format 1, which is still read, had the bits themselves eight to a byte, knew its base by the fingerprint of the files
alone, and kept the sum beside the header, where the order of the two changed from run to run.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field, ValidationError

from slimformer.artifact.manifest import Record, Sha256
from slimformer.artifact.provenance import fingerprint
from slimformer.artifact.storage.mask_identity import BaseIdentity
from slimformer.config import first_problem
from slimformer.errors import ArtifactError, FormatError
from slimformer.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

#: Version of the format written, and the newest one read.
FORMAT = 2
#: Under which key of the file's metadata the header lies, and under which its sum in format 1.
HEADER, SUM = "slimformer", "sha256"
BITS, KEPT, WHOLE = "bits/", "kept/", "whole/"

Unit = Literal["neurons", "heads"]


class BaseRecord(Record):
    """Which base a mask belongs to, and where it was."""

    name: str = Field(min_length=1, description="alias, Hub name or name of the folder")
    source: str = Field(min_length=1, description="alias, Hub name or path of the folder at the time of saving")
    fingerprint: Sha256 = Field(description="content hash of the base's files with weights")
    identity: BaseIdentity | None = Field(
        default=None, description="what is compared with a base to tell whether it is this one; null in format 1"
    )
    processor: dict[str, Sha256] = Field(
        default_factory=dict, description="sums of the base's own tokenizer files, where these are the mask's too"
    )


class DrawnRecord(Record):
    """How the weight of a head was drawn that was masked and not trained; see `slimformer.formats.drawn`."""

    seed: int = Field(ge=0, lt=1 << 32)
    deviation: float = Field(gt=0)


class Header(Record):
    """What the file says of itself."""

    format: int = Field(ge=1, le=FORMAT)
    base: BaseRecord
    shapes: dict[str, list[Annotated[int, Field(ge=0)]]] = Field(description="shape of each masked weight")
    kept: dict[Annotated[str, Field(pattern=r"^\d+/(neurons|heads)$")], int] = Field(
        default_factory=dict, description="`block/neurons` or `block/heads` → how many there were"
    )
    drawn: dict[str, DrawnRecord] = Field(
        default_factory=dict, description="name of a weight that the base does not have → how it was drawn"
    )
    sha256: Sha256 | None = Field(default=None, description="sum over the rest of the header and all tensors")

    def sum_with(self, tensors: Mapping[str, Tensor]) -> str:
        """The sum over the rest of the header and all tensors."""
        # A field that is added later, with a default, changes no sum of today.
        return _sum(self.model_dump_json(exclude={"sha256"}, exclude_defaults=True), tensors)


@dataclass(frozen=True)
class MaskFile:
    """The content of a mask file.

    Args:
        base: The base it belongs to.
        bits: Name of a weight → its bits, coded as `slimformer.formats.gaps` does.
        shapes: Name of a weight → its shape.
        kept: Block → unit → which of them are kept, as booleans.
        whole: Tensors that are stored as they are.
        drawn: Masked weights that the base does not have → how they were drawn.
    """

    base: BaseRecord
    bits: Mapping[str, Tensor]
    shapes: Mapping[str, tuple[int, ...]]
    kept: Mapping[int, Mapping[Unit, Tensor]] = field(default_factory=dict)
    whole: Mapping[str, Tensor] = field(default_factory=dict)
    drawn: Mapping[str, DrawnRecord] = field(default_factory=dict)

    @property
    def masked_weights(self) -> int:
        """How many weights have a bit."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def mask(self, name: str) -> Tensor:
        """The bits of one weight, as bytes 0 and 1 in the weight's shape.

        Ask only when the shape is known to be that of a weight there is: the file may claim any.
        """
        from slimformer.formats import gaps

        shape = self.shapes[name]
        try:
            return gaps.decode(self.bits[name], math.prod(shape)).view(shape)
        except FormatError as error:
            raise ArtifactError(f"the bits of `{name}` cannot be read: {error}; copy the mask again") from error

    def laid_out(self) -> MaskFile:
        """The same with bits eight to a byte, which take more memory and are quicker to read."""
        from slimformer.formats import gaps

        return replace(self, bits={name: gaps.plain(self.mask(name)) for name in self.bits})

    def write(self, path: Path) -> None:
        """Write the file."""
        from safetensors.torch import save_file

        tensors = {f"{BITS}{name}": coded for name, coded in self.bits.items()}
        tensors |= {f"{WHOLE}{name}": tensor.detach().cpu().contiguous() for name, tensor in self.whole.items()}
        counts = {}
        for block, units in self.kept.items():
            for unit, flags in units.items():
                tensors[f"{KEPT}{block}/{unit}"], counts[f"{block}/{unit}"] = pack(flags), flags.numel()
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        header = Header(format=FORMAT, base=self.base, shapes=shapes, kept=counts, drawn=dict(self.drawn))
        header = header.model_copy(update={"sha256": header.sum_with(tensors)})
        # One entry only: safetensors writes several in an order that changes from run to run.
        save_file(tensors, path, metadata={HEADER: header.model_dump_json(exclude_defaults=True)})

    @classmethod
    def read(cls, path: Path) -> MaskFile:
        """Read a file and check its sum; whatever is wrong with it is an `ArtifactError`."""
        header, tensors = _open(path)
        bits, kept, whole = (
            {name.removeprefix(kind): each for name, each in tensors.items() if name.startswith(kind)}
            for kind in (BITS, KEPT, WHOLE)
        )
        shapes = {name: tuple(shape) for name, shape in header.shapes.items()}
        if header.format == 1:
            bits = {name: _recoded(packed) for name, packed in bits.items()}
        _check_lengths(path, bits, {name: math.prod(shape) for name, shape in shapes.items()})
        _check_lengths(path, {name: _recoded(packed) for name, packed in kept.items()}, header.kept)
        for name in sorted(header.drawn.keys() - shapes.keys()):
            raise ArtifactError(f"`{path}` tells how `{name}` was drawn and has no bits of it; copy it again")
        flags: dict[int, dict[Unit, Tensor]] = {}
        for place, packed in kept.items():
            block, _, unit = place.partition("/")
            flags.setdefault(int(block), {})[cast("Unit", unit)] = unpack(packed, (header.kept[place],)).bool()
        return cls(header.base, bits, shapes, flags, whole, header.drawn)


def with_source(path: Path, source: str) -> bytes:
    """The content of a file, of whatever format, that says of its base that it is elsewhere; its tensors stay."""
    from safetensors.torch import save

    header, tensors = _open(path)
    header = header.model_copy(update={"base": header.base.model_copy(update={"source": source})})
    if header.format == 1:
        text = header.model_dump_json(exclude_defaults=True)
        metadata = {HEADER: text, SUM: _sum(text, tensors)}
    else:
        header = header.model_copy(update={"sha256": header.sum_with(tensors)})
        metadata = {HEADER: header.model_dump_json(exclude_defaults=True)}
    content: bytes = save(tensors, metadata=metadata)
    return content


def pack(flags: Tensor) -> Tensor:
    """Booleans, flat, eight to a byte."""
    from slimformer.formats import layout, packing

    return packing.pack(flags.detach().reshape(-1).cpu(), layout.BITS)


def unpack(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Bytes 0 and 1 of a shape from packed bits."""
    import torch

    from slimformer.formats import layout, packing

    return packing.unpack(packed, layout.BITS, math.prod(shape)).view(torch.uint8).view(shape)


def _open(path: Path) -> tuple[Header, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        raise ArtifactError(f"there is no mask at `{path}`; give the folder of a mask") from None
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"`{path}` is cut short or no safetensors file: {error}; copy it again") from error
    header = _header(path, metadata)
    recorded, computed = (
        (metadata.get(SUM), _sum(metadata[HEADER], tensors))
        if header.format == 1
        else (header.sha256, header.sum_with(tensors))
    )
    if recorded != computed:
        raise ArtifactError(f"`{path}` was changed after it was written: its sum does not fit; copy it again")
    return header, tensors


def _header(path: Path, metadata: dict[str, str]) -> Header:
    try:
        content = parse_json(metadata[HEADER])
        if isinstance(content, dict) and isinstance(found := content.get("format"), int) and found > FORMAT:
            raise ArtifactError(
                f"`{path}` is of format {found}, and this slimformer reads up to format {FORMAT}; update slimformer"
            )
        return Header.model_validate(content)
    except KeyError:
        raise ArtifactError(
            f"`{path}` is no mask: its header lacks `{HEADER}`; give a mask made by slimformer"
        ) from None
    except ValidationError as error:
        raise ArtifactError(
            f"the header of `{path}` cannot be read: it {first_problem(error)}; copy it again"
        ) from error
    except ValueError as error:
        raise ArtifactError(f"the header of `{path}` cannot be read: {error}; copy it again") from error


def _sum(header: str, tensors: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(f"{header}\n{fingerprint(tensors)}".encode()).hexdigest()


def _recoded(packed: Tensor) -> Tensor:
    """Bits of format 1 as those of format 2."""
    import torch

    return torch.cat([torch.zeros(1, dtype=packed.dtype), packed.reshape(-1)])


def _check_lengths(path: Path, coded: Mapping[str, Tensor], counts: Mapping[str, int]) -> None:
    from slimformer.formats import gaps

    for name in sorted(coded.keys() ^ counts.keys()):
        raise ArtifactError(f"`{path}` has bits or a shape of `{name}`, but not both; copy it again")
    for name, bits in coded.items():
        try:
            gaps.check(bits, counts[name])
        except FormatError as error:
            raise ArtifactError(f"`{path}` does not hold the bits of `{name}`: {error}; copy it again") from error
