"""Elastic artifacts without training: a model with random weights and sizes nested in it, saved as a run would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slimformer.artifact import Step, save
from slimformer.artifact.storage.elastic import ElasticStorage
from slimformer.sizes import make_elastic, make_plain, name_sizes
from slimformer.sizes.table import SizesRecord

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.sizes import Size

#: Three sizes, by what is nested.
NESTINGS: dict[str, tuple[Size, ...]] = {
    "neurons": name_sizes([0.25, 0.5, 1]),
    "heads": name_sizes([0.25, 0.5, 1], heads=[0.5, 0.5, 1]),
    "depth": name_sizes([0.25, 0.5, 1], depth=[0.5, 1, 1]),
    "all": name_sizes([0.25, 0.25, 0.5, 1], heads=[0.5, 1, 1, 1]),
}


def elastic_folder(folder: Path, model: Any, nesting: str = "neurons", **settings: Any) -> Path:
    """Save a model as an elastic artifact; afterwards it has one size again."""
    record = SizesRecord.of(make_elastic(model, NESTINGS[nesting], skip=settings.pop("skip", False)))
    make_plain(model)
    save(folder, model, step=Step(method="elastic"), storage=ElasticStorage(record), **settings)
    return folder
