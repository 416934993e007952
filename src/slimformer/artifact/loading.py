"""Loading and verifying an artifact: sums first, then the model, and only when every weight is accounted for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.artifact.checks import check_class, check_finite, find_class
from slimformer.artifact.layout import CONFIG
from slimformer.artifact.manifest import Manifest, read_manifest
from slimformer.artifact.opening.configs import check_configs, read_config
from slimformer.artifact.opening.files import check_files
from slimformer.artifact.probe import read_probe
from slimformer.artifact.probe.recorded import check_recorded
from slimformer.artifact.storage.handler import storage_of
from slimformer.artifact.task import check_task
from slimformer.errors import ArtifactError, CheckpointError
from slimformer.models import load_config, located, quiet, trusted, trusting
from slimformer.models.processors import check_tokenizer, processor_class
from slimformer.models.processors.backend import check_backend
from slimformer.models.settings import as_device, as_dtype
from slimformer.panics import panics_raised

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from slimformer.artifact.storage.handler import Storage


@dataclass(frozen=True)
class Loaded:
    """An artifact in memory: the model in eval mode, what prepares its inputs, and its manifest."""

    model: PreTrainedModel
    processor: Any
    manifest: Manifest


@dataclass(frozen=True)
class Report:
    """What `verify` checked."""

    folder: str
    files: tuple[str, ...]
    bytes: int
    outputs: tuple[str, ...]
    max_difference: float


def load_for_torch(
    folder: str | Path,
    *,
    check: bool,
    code: bool,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    base: str | Path | None,
    cast_base: bool,
) -> Loaded:
    """Load an artifact into torch; the settings are those of `load`, and `code` whether that of the folder may run."""
    path, place, kind = located(folder), as_device(device), as_dtype(dtype)
    with trusting(code):
        manifest = checked_manifest(path)
        loaded, _ = load_checked(path, manifest, dtype=kind, base=base, cast_base=cast_base, check=check)
    if device is not None:
        loaded.model.to(place)  # type: ignore[arg-type]
    return loaded


def verify(
    folder: str | Path, trust_remote_code: bool = False, base: str | Path | None = None, cast_base: bool = False
) -> Report:
    """Check an artifact completely; an `ArtifactError` gives the first reason why it is not sound.

    The manifest and the sums of all files come first, and nothing else is parsed before they agree. Then
    the fingerprint of the weights, the loading of model and processor, and the probe, asked on the CPU in
    float32. A mask is verified on its base, which is found as `load` finds it; with `cast_base`, one that was cast to
    16 bits will do.
    """
    path = located(folder)
    with trusting(trust_remote_code):
        manifest = checked_manifest(path)
        elsewhere = storage_of(path, manifest).check(path)
        if elsewhere is None:
            _, apart = load_checked(path, manifest, dtype="float32", base=base, cast_base=cast_base)
            elsewhere = tuple(sorted(read_probe(path).outputs)), apart
    size = sum(sums.bytes for sums in manifest.files.values())
    return Report(str(folder), tuple(sorted(manifest.files)), size, *elsewhere)


def checked_manifest(folder: Path) -> Manifest:
    """Read the manifest and check everything that can be checked without parsing weights."""
    manifest = read_manifest(folder)
    check_files(folder, manifest.files)
    check_configs(folder)
    return manifest


def load_checked(
    folder: Path,
    manifest: Manifest,
    *,
    dtype: str | torch.dtype | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    check: bool = True,
) -> tuple[Loaded, float]:
    """Load an artifact whose sums agree, and check whatever can be checked of it.

    Args:
        folder: The folder.
        manifest: What `checked_manifest` read there.
        dtype: Type of the weights in memory; as saved when not given.
        base: Where the base of a mask is.
        cast_base: Whether that base may have been cast to 16 bits.
        check: Whether it must read inputs and answer the probe as recorded.

    Returns:
        What was loaded, and the largest difference to the answers recorded.
    """
    storage = check_stored(folder, manifest)
    model = load_model(folder, dtype=dtype, base=base, cast_base=cast_base, storage=storage)
    check_class(folder, manifest, type(model))
    check_task(manifest.task, model.config)
    loaded = Loaded(model, load_processor(folder, base=base, cast_base=cast_base, storage=storage), manifest)
    bytes_each = 2 if cast_base else model.dtype.itemsize
    return loaded, check_recorded(folder, loaded, bytes_each) if check else 0.0


def check_stored(folder: Path, manifest: Manifest) -> Storage:
    """Refuse weights that are not the ones saved, and a config that tells another type; return how they are stored."""
    storage = storage_of(folder, manifest)
    _check_weight_files(folder, manifest, storage.tensor_files(folder))
    if (weights := storage.fingerprint(folder)) != manifest.model.fingerprint:
        raise ArtifactError(
            f"the weights of artifact `{folder}` have the fingerprint {weights[:12]}… instead of "
            f"{manifest.model.fingerprint[:12]}…; they are not the ones saved, copy the artifact again"
        )
    if (dtype := str(read_config(folder / CONFIG).get("dtype"))) != manifest.model.dtype:
        raise ArtifactError(
            f"{CONFIG} of artifact `{folder}` gives the type `{dtype[:40]}`, and the artifact is of "
            f"`{manifest.model.dtype}`; copy the artifact again"
        )
    return storage


def _check_weight_files(folder: Path, manifest: Manifest, files: Sequence[Path]) -> None:
    """Refuse weights beside those that are read: another program might read these."""
    read = {path.name for path in files}
    for name in sorted(manifest.files):
        if name.endswith(".safetensors") and name not in read:
            raise ArtifactError(f"artifact `{folder}` holds `{name}`, which is no part of its model; remove it")


def load_model(
    folder: Path,
    *,
    dtype: str | torch.dtype | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    storage: Storage | None = None,
) -> PreTrainedModel:
    """Load the model of a folder; a weight too many, too few, of another shape or not finite is an error.

    Args:
        folder: The folder.
        dtype: Type of the weights in memory; as saved when not given.
        base: Where the base of a mask is.
        cast_base: Whether that base may have been cast to 16 bits.
        storage: How it is stored, where the folder cannot tell yet.
    """
    loader = find_class(folder, read_config(folder / CONFIG))
    model = (storage or storage_of(folder)).read(folder, loader, dtype=dtype, base=base, cast_base=cast_base)
    check_finite(model.state_dict(), f"`{folder}`")
    return model


def load_processor(
    folder: Path, *, base: str | Path | None = None, cast_base: bool = False, storage: Storage | None = None
) -> Any:
    """Load the tokenizer or image processor of a folder, or of its base if it is a mask; None when it has none."""
    import transformers

    reader = processor_class([path.name for path in folder.iterdir()])
    if reader is None:
        return (storage or storage_of(folder)).processor(folder, base, cast_base=cast_base)
    name, auto = reader
    try:
        check_backend(folder, str(folder))
        with quiet(), panics_raised():
            processor = getattr(transformers, auto).from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=trusted()
            )
        check_tokenizer(processor, load_config(folder), str(folder))
    except CheckpointError as error:
        raise ArtifactError(str(error)) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ArtifactError(
            f"the tokenizer or image processor of `{folder}` does not load: {reason}; "
            f"check {name} and the installed transformers version"
        ) from error
    return processor
