"""An elastic model: its largest size as a plain or packed checkpoint, and beside it which sizes are nested in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.artifact.storage.packed import PackedStorage
from slimformer.artifact.storage.plain import PlainStorage
from slimformer.errors import ArtifactError, SizeError, ViewError
from slimformer.sizes import Elastic, copy_largest
from slimformer.sizes.table import PUBLISHED, SIZES, SizesRecord, name_published, read_sizes

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest
    from slimformer.artifact.storage.handler import Loader


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
        text = self.record.to_json()
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
        name_published(folder, elastic.naming)
    except (SizeError, ViewError) as error:
        raise ArtifactError(f"`{folder / file}` does not fit the model: {error}") from error
    return elastic
