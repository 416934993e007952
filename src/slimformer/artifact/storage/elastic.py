"""An elastic model: its largest size as a plain or packed checkpoint, and beside it which sizes are nested in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slimformer.artifact.manifest import first_problem
from slimformer.artifact.storage.packed import PackedStorage
from slimformer.artifact.storage.plain import PlainStorage
from slimformer.errors import ArtifactError, SizeError, ViewError
from slimformer.files import read_limited
from slimformer.sizes import MOST_SIZES, Elastic, Size, copy_largest, make_elastic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest
    from slimformer.artifact.storage.handler import Loader

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

    def nest(self, model: PreTrainedModel) -> Elastic:
        """Nest the same in a model."""
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


class WithSizes(PlainStorage):
    """A way of storing the largest size, with `sizes.json` beside it.

    Args:
        record: What is nested; needed for writing.
    """

    bound = (SIZES,)
    nested = True

    def __init__(self, record: SizesRecord | None = None) -> None:
        self.record = record

    def recognises(self, folder: Path) -> bool:
        """Whether there is a table of sizes."""
        return super().recognises(folder) and (folder / SIZES).is_file()

    def write(self, stage: Path, model: PreTrainedModel, processor: Any, base: Any) -> None:
        """Write the largest size, and the table."""
        if self.record is None:
            raise ArtifactError("an elastic artifact needs its sizes; save what `slimformer elastic` made")
        super().write(stage, model, processor, base)
        text = self.record.model_dump_json(exclude_defaults=True)
        (stage / SIZES).write_text(f"{text}\n", encoding="utf-8")

    def read(
        self,
        folder: Path,
        loader: Loader,
        *,
        dtype: str | torch.dtype | None,
        base: str | Path | None,
        cast_base: bool = False,
    ) -> PreTrainedModel:
        """Load the largest size and nest the others in it; a view of a packed weight would expand it at each call."""
        from slimformer.operators import expand

        model = super().read(folder, loader, dtype=dtype, base=base, cast_base=cast_base)
        expand(model)
        nest_sizes(folder, model)
        return model

    def card(self, manifest: Manifest) -> str:
        """As the largest size alone, and how to choose another."""
        return "\n\n".join([super().card(manifest), "Any nested size of it, without another copy:", WITH_SIZES])


class ElasticStorage(WithSizes):
    """A plain checkpoint that loads anywhere as the largest size."""

    name = "elastic"
    no_base = (
        "is an elastic model, whose sizes this method would not keep; train it on with `slimformer elastic`, or take "
        "out its largest size first: slimformer extract {name} --allocation XL --out PLAIN"
    )


class PackedElasticStorage(WithSizes, PackedStorage):
    """Packed weights of the largest size, which hold those of the others: codes are cut as weights are."""

    name = "packed-elastic"


def with_sizes(model: Any) -> tuple[PreTrainedModel, WithSizes]:
    """The largest size of an elastic model in memory, and how it is stored with the others."""
    record, plain = SizesRecord.of(Elastic.of(model)), copy_largest(model)
    return plain, (PackedElasticStorage if getattr(plain, "is_quantized", False) else ElasticStorage)(record)


WITH_SIZES = """```python
import slimformer
from slimformer.sizes import Elastic

model = slimformer.load("path/to/this/folder").model
with Elastic.of(model).at("S"):
    ...
```"""


def nest_sizes(folder: Path, model: PreTrainedModel) -> Elastic:
    """Nest the sizes of a folder in its model, and give the published ones their names."""
    file = SIZES
    try:
        elastic = read_sizes(folder).nest(model)
        file = PUBLISHED
        for record in read_published(folder):
            checked = PublishedRecord.make(record.name, record.allocation, elastic.names)
            elastic.published[record.name] = elastic.allocation(checked.allocation.split(","))
    except (SizeError, ViewError) as error:
        raise ArtifactError(f"`{folder / file}` does not fit the model: {error}") from error
    return elastic


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
