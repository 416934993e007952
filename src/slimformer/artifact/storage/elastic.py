"""An elastic model: its largest size as a plain checkpoint, and beside it which sizes are nested in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slimformer.artifact.storage.plain import PlainStorage
from slimformer.errors import ArtifactError, SizeError, describe
from slimformer.files import read_limited
from slimformer.sizes import Elastic, Size, make_elastic

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest
    from slimformer.artifact.storage.handler import Loader

#: The file that tells the sizes.
SIZES = "sizes.json"
#: A table of sizes is a few kilobytes, with the order of all neurons some megabytes.
MAX_BYTES = 64 * 1024 * 1024


class SizeRecord(BaseModel):
    """One size as it is stored."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(min_length=1)
    neurons: float = Field(gt=0, le=1)
    heads: float = Field(default=1.0, gt=0, le=1)
    depth: float = Field(default=1.0, gt=0, le=1)


class SizesRecord(BaseModel):
    """What is nested in a model."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    sizes: list[SizeRecord] = Field(min_length=1)
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

    def nest(self, model: PreTrainedModel) -> Elastic:
        """Nest the same in a model."""
        return make_elastic(model, [Size(**dict(size)) for size in self.sizes], heads=self.heads, skip=self.skip)


class ElasticStorage(PlainStorage):
    """A plain checkpoint that loads anywhere as the largest size, with `sizes.json` beside it.

    Args:
        record: What is nested; needed for writing.
    """

    name = "elastic"
    no_base = (
        "is an elastic model, whose sizes this method would not keep; train it on with `slimformer elastic`, or save "
        "its largest size as a plain checkpoint with transformers"
    )

    def __init__(self, record: SizesRecord | None = None) -> None:
        self.record = record

    def recognises(self, folder: Path) -> bool:
        """Whether there is a table of sizes."""
        return super().recognises(folder) and (folder / SIZES).is_file()

    def write(self, stage: Path, model: PreTrainedModel, processor: Any, base: Any) -> None:
        """Write the largest size as a plain checkpoint, and the table."""
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
        """Load the largest size and nest the others in it."""
        model = super().read(folder, loader, dtype=dtype, base=base, cast_base=cast_base)
        try:
            read_sizes(folder).nest(model)
        except SizeError as error:
            raise ArtifactError(f"`{folder / SIZES}` does not fit the model: {error}") from error
        return model

    def card(self, manifest: Manifest) -> str:
        """As a plain checkpoint, and how to choose a size."""
        return "\n\n".join([super().card(manifest), "Any nested size of it, without another copy:", WITH_SIZES])


WITH_SIZES = """```python
import slimformer
from slimformer.sizes import Elastic

model = slimformer.load("path/to/this/folder").model
with Elastic.of(model).at("S"):
    ...
```"""


def read_sizes(folder: Path) -> SizesRecord:
    """What is nested in the model of a folder."""
    path = folder / SIZES
    try:
        return SizesRecord.model_validate_json(read_limited(path, MAX_BYTES))
    except (ValidationError, OSError) as error:
        raise ArtifactError(f"`{path}` is no table of sizes: {describe(error)}; copy the artifact again") from error
