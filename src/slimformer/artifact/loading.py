"""Loading and verifying an artifact: sums first, then the model, and only when every weight is accounted for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from slimformer.artifact.checks import check_class, check_configs, check_files, check_finite, find_class, read_config
from slimformer.artifact.layout import CONFIG
from slimformer.artifact.manifest import Manifest, read_manifest
from slimformer.artifact.probe import read_probe
from slimformer.artifact.probe.recorded import check_recorded
from slimformer.artifact.storage.handler import storage_of
from slimformer.artifact.task import check_task
from slimformer.errors import ArtifactError, CheckpointError, ConfigError
from slimformer.models import load_config, located, quiet, trusted, trusting
from slimformer.models.processors import check_tokenizer, processor_class
from slimformer.models.processors.backend import check_backend, panics_raised
from slimformer.models.settings import as_device, as_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from slimformer.artifact.storage.handler import Storage
    from slimformer.runtime.decoding.texts import NativeTexts


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


@overload
def load(folder: str | Path, *, engine: Literal["native"]) -> NativeTexts: ...


@overload
def load(
    folder: str | Path,
    check: bool = True,
    trust_remote_code: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    *,
    engine: None = None,
) -> Loaded: ...


def load(
    folder: str | Path,
    check: bool = True,
    trust_remote_code: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    *,
    engine: str | None = None,
) -> Loaded | NativeTexts:
    """Load an artifact with the class it was saved from.

    What `verify` refuses is refused here too, by the same code.

    Args:
        folder: the folder that `save` wrote, or a copy of it; or its name on the Hub, `owner/name` or
            `owner/name@revision`.
        check: compare how inputs are read and what is answered with what was recorded at saving. Without it the sums
            of all files, and that every weight is there, are checked none the less.
        trust_remote_code: run code that the folder brings or refers to.
        device: where the model goes; the CPU when not given.
        dtype: type of the weights in memory; as saved when not given.
        base: for a mask, where its base is; when not given, where it was at saving, or beside the folder.
        cast_base: for a mask, whether its base may have been cast to 16 bits, which changes answers a little.
        engine: `native` for the native engine, without torch; what comes then is asked with texts. None of the other
            settings goes with it.

    Example:
        >>> loaded = load("out/sst2")
        >>> loaded.model(**loaded.processor("a fine film", return_tensors="pt")).logits
        >>> load("out/sst2", engine="native").predict("a fine film")
        [{'label': 'positive', 'score': 0.98}]
    """
    if engine is not None:
        others = trust_remote_code or cast_base or not check or (device, dtype, base) != (None, None, None)
        return _load_native(located(folder), engine, others)
    path, place, kind = located(folder), as_device(device), as_dtype(dtype)
    with trusting(trust_remote_code):
        manifest = checked_manifest(path)
        loaded, _ = load_checked(path, manifest, dtype=kind, base=base, cast_base=cast_base, check=check)
    if device is not None:
        loaded.model.to(place)  # type: ignore[arg-type]
    return loaded


def _load_native(path: Path, engine: str, others: bool) -> NativeTexts:
    from slimformer.runtime.decoding.architecture import decodes
    from slimformer.runtime.decoding.texts import open_texts
    from slimformer.sizes.table import SIZES

    if engine != "native" or others:
        raise ConfigError(f"`engine` is `{engine}`; give `native` with a folder and nothing else, or leave it out")
    manifest = checked_manifest(path)
    # Of an elastic model there is the largest size as a plain or packed checkpoint; decoders read the others of it.
    nested = (path / SIZES).is_file() and decodes(read_config(path / CONFIG))
    if manifest.model.storage not in ("plain", "packed") and not nested:
        raise ArtifactError(
            f"`{path}` is stored as {manifest.model.storage}, which the engine does not read alone; merge or extract it"
        )
    length = None if manifest.task is None else manifest.task.settings.get("max_length")
    return open_texts(path, max_length=length if isinstance(length, int) else None)


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
