"""The tables beside an elastic model: which sizes are nested in it, and which allocations have names of their own.

Read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slimformer.config import first_problem
from slimformer.errors import ArtifactError, SizeError
from slimformer.files import read_limited
from slimformer.sizes.naming import Naming
from slimformer.sizes.size import MOST_SIZES, Size, check_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from slimformer.sizes.elastic import Elastic

#: The file that tells the sizes.
SIZES = "sizes.json"
#: The file that gives allocations names of their own.
PUBLISHED = "published.json"
#: A table of sizes is a few kilobytes, with the order of all neurons some megabytes.
MAX_BYTES = 64 * 1024 * 1024


class SizeRecord(BaseModel):
    """One size as it is stored."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(min_length=1)
    neurons: float = Field(gt=0, le=1)
    heads: float = Field(default=1.0, gt=0, le=1)
    depth: float = Field(default=1.0, gt=0, le=1)
    output: float = Field(default=1.0, gt=0, le=1)


class SizesRecord(BaseModel):
    """What is nested in a model."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    sizes: list[SizeRecord] = Field(min_length=1, max_length=MOST_SIZES)
    heads: bool = Field(default=False, description="whether heads are nested")
    skip: bool = Field(default=False, description="whether blocks may be skipped")
    order: list[list[int]] | None = Field(
        default=None,
        description="each neuron's number in the base, block by block; null where the order is the base's",
    )

    @classmethod
    def of(cls, elastic: Elastic, order: list[list[int]] | None = None) -> SizesRecord:
        """What is nested in a model in memory."""
        return cls(
            sizes=[SizeRecord(**vars(size)) for size in elastic.sizes],
            heads=any(block.heads is not None for block in elastic.blocks),
            skip=any(block.depth is not None for block in elastic.blocks),
            order=order,
        )

    def nested(self) -> list[Size]:
        """The sizes."""
        return [Size(**dict(size)) for size in self.sizes]

    def naming(self, blocks: int) -> Naming:
        """What names mean in a model of so many blocks, any of which may be skipped where one may."""
        sizes = tuple(self.nested())
        check_sizes(sizes)
        return Naming(sizes, (self.skip or any(size.depth < 1 for size in sizes),) * blocks)

    def nest(self, model: nn.Module) -> Elastic:
        """Nest the same in a model."""
        from slimformer.sizes.elastic import make_elastic

        return make_elastic(model, self.nested(), heads=self.heads, skip=self.skip)


class PublishedRecord(BaseModel):
    """An allocation with a name of its own: what it costs, and how good it is where that was measured."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=80, pattern=r"^[A-Za-z][\w.-]*$")
    allocation: str = Field(min_length=1, description="one size for each block, 0 for a block that is skipped")
    cost: dict[str, float] = Field(default_factory=dict, description="parameters, bytes, and FLOPs at a length")
    quality: dict[str, float] = Field(default_factory=dict, description="metrics as measured")

    @classmethod
    def make(cls, name: str, allocation: str, sizes: Sequence[str]) -> PublishedRecord:
        """A record of a name that is none of a size."""
        try:
            record = cls(name=name, allocation=allocation)
        except ValidationError as error:
            raise SizeError(
                f"`{name}` is no name for a size; give letters, digits, dots and hyphens, beginning with a letter"
            ) from error
        if name.upper() in {size.upper() for size in sizes}:
            raise SizeError(f"`{name}` is a size of the model already; give another name")
        return record


class PublishedRecords(BaseModel):
    """All of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    published: list[PublishedRecord]


def read_published(folder: Path) -> list[PublishedRecord]:
    """The published sizes of a folder; none where it has no table of them."""
    path = folder / PUBLISHED
    if not path.is_file():
        return []
    try:
        return PublishedRecords.model_validate_json(read_limited(path, MAX_BYTES)).published
    except ValidationError as error:
        raise ArtifactError(f"`{path}` {first_problem(error)}; copy the artifact again") from error
    except OSError as error:
        raise ArtifactError(f"`{path}` cannot be read: {error.strerror}; copy the artifact again") from error


def name_published(folder: Path, naming: Naming) -> None:
    """Give the published sizes of a folder their names."""
    for record in read_published(folder):
        checked = PublishedRecord.make(record.name, record.allocation, naming.names)
        naming.published[record.name] = naming.allocation(checked.allocation.split(","))


def read_naming(folder: Path, blocks: int) -> Naming:
    """What names of sizes mean in the model of a folder, of so many blocks."""
    file = SIZES
    try:
        naming = read_sizes(folder).naming(blocks)
        file = PUBLISHED
        name_published(folder, naming)
    except SizeError as error:
        raise ArtifactError(f"`{folder / file}` does not fit the model: {error}") from error
    return naming


def write_published(records: list[PublishedRecord]) -> bytes:
    """The table of published sizes as a file holds it."""
    return f"{PublishedRecords(published=records).model_dump_json(indent=2)}\n".encode()


def read_sizes(folder: Path) -> SizesRecord:
    """What is nested in the model of a folder."""
    path = folder / SIZES
    try:
        return SizesRecord.model_validate_json(read_limited(path, MAX_BYTES))
    except ValidationError as error:
        raise ArtifactError(f"`{path}` {first_problem(error)}; copy the artifact again") from error
    except OSError as error:
        raise ArtifactError(f"`{path}` cannot be read: {error.strerror}; copy the artifact again") from error
