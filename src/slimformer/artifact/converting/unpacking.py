"""Unpacking: a packed artifact as a plain float checkpoint, for those who have no slimformer."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from slimformer.artifact.converting.filling import fill_up
from slimformer.artifact.converting.packed_base import plain_config
from slimformer.artifact.manifest import Manifest, Step, read_manifest
from slimformer.artifact.opening.engines import load
from slimformer.artifact.probe import ask, batch_for, difference, relative_difference, rounding_spec
from slimformer.artifact.probe.recorded import TOLERANCE
from slimformer.artifact.saving import republish, save
from slimformer.artifact.staging import check_place
from slimformer.artifact.storage.handler import storage_of
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
    from slimformer.sizes.table import SizesRecord

#: Ways of storing that are unpacked.
PACKED = ("packed", "packed-elastic", "per-block")
#: What the step of an unpacked model says: how far answers moved because activations are not rounded any more, and how
#: they were.
MOVED, ACTIVATIONS = "moved", "activations"


def unpack(
    folder: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    command: str | None = None,
    check: bool = True,
    store: Store | None = None,
) -> Manifest:
    """Write the model of a packed artifact as a plain checkpoint that needs no slimformer.

    Weights are, bit for bit, the floats that the codes stand for. Activations are not rounded any more, which plain
    Transformers cannot do: how far answers to the probe move by that is recorded in the step, and metrics of a model
    that rounded are not carried over. Blocks with widths of their own are filled up with neurons and heads that count
    for nothing; sizes nested in the model stay.

    Args:
        folder: The folder of a packed artifact.
        out: Where the checkpoint goes.
        overwrite: Replace an artifact that is there.
        command: The command line, for the record.
        check: Whether the artifact must answer as recorded at saving; its sums are compared in any case.
        store: What weights are stored as: `float32`, `half` or `bfloat16`; by default as they are in memory.

    Example:
        >>> unpack("sentiment-ternary", "sentiment-plain").steps[-1].config["moved"]
    """
    from slimformer.artifact.storage.elastic import ElasticStorage
    from slimformer.sizes.table import PUBLISHED

    path = located(folder)
    if as_path(out).resolve() == path.resolve():
        raise ArtifactError(f"`--out` is the packed model `{folder}` itself, which would be lost; give another folder")
    sizes = _nested(path, folder)
    check_place(out, overwrite)
    loaded = load(path, check=check)
    plain, moved = _plain(loaded.model, folder)
    rounding = rounding_spec(loaded.model)
    rounded = round_weights(plain, store)
    manifest = save(
        out,
        plain,
        step=Step(
            method="unpack",
            config={MOVED: moved, ACTIVATIONS: rounding, **({} if store is None else {"store": store})},
        ),
        processor=loaded.processor,
        base=folder,
        base_manifest=loaded.manifest,
        metrics=loaded.manifest.metrics if rounding is None else None,
        task=loaded.manifest.task,
        storage="plain" if sizes is None else ElasticStorage(sizes),
        overwrite=overwrite,
        command=command,
        rounded=rounded,
    )
    if sizes is not None and (path / PUBLISHED).is_file():
        manifest = republish(out, out, {}, files={PUBLISHED: (path / PUBLISHED).read_bytes()}, overwrite=True)
    return manifest


def _nested(path: Path, folder: str | Path) -> SizesRecord | None:
    """Refuse what is not packed; return the sizes nested in what is, None for none."""
    from slimformer.sizes.table import read_sizes

    storage = storage_of(path, read_manifest(path))
    if storage.name == "mask":
        raise ArtifactError(f"artifact `{folder}` is a mask; make a plain checkpoint of it with `slimformer merge`")
    if storage.name not in PACKED:
        raise ArtifactError(
            f"artifact `{folder}` is not packed, its storage is `{storage.name}`; it loads without slimformer already"
        )
    return read_sizes(path) if storage.nested else None


def _plain(model: PreTrainedModel, folder: str | Path) -> tuple[PreTrainedModel, float]:
    """A model of Transformers alone with the same weights, and how far its answers lie from those with rounding."""
    from slimformer.sizes import is_elastic, make_plain
    from slimformer.views import restore_output

    if is_elastic(model):
        model = cast("PreTrainedModel", make_plain(model))
    batch = batch_for(model)
    rounded, exact = ask(model, batch), ask(model, batch, rounded=False)
    plain = _built(type(model), plain_config(model)).to(model.dtype)  # type: ignore[arg-type]
    fill_up(model, plain, _places(model))
    plain.tie_weights()
    if getattr(model, "generation_config", None) is not None:
        plain.generation_config = copy.deepcopy(model.generation_config)
    restore_output(plain.eval())
    answer = ask(plain, batch)
    relative, absolute = TOLERANCE[model.dtype.itemsize]
    try:
        difference(exact, answer, relative=relative, absolute=absolute)
    except ArtifactError as error:
        raise ArtifactError(
            f"`{folder}` cannot be a plain checkpoint: {error.reason}; export it with `slimformer export` instead"
        ) from error
    return plain, float(f"{relative_difference(rounded, answer):.3g}")


def _built(architecture: Any, config: Any) -> PreTrainedModel:
    import torch

    with torch.random.fork_rng(devices=[]):
        built: PreTrainedModel = architecture(config)
    return built


def _places(model: PreTrainedModel) -> dict[int, dict[Unit, Tensor]]:
    """A narrow block has the first neurons and heads of a wide one."""
    import torch

    from slimformer.models.widths import widths_of

    return {
        number: {"neurons": torch.arange(width.neurons), "heads": torch.arange(width.heads)}
        for number, width in enumerate(widths_of(model))
    }
