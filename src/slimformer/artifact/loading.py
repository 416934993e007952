"""Loading and verifying an artifact: sums first, then the model, and only when every weight is accounted for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.artifact.checks import check_configs, check_files, read_config
from slimformer.artifact.layout import CONFIG, PROBE
from slimformer.artifact.manifest import Manifest, read_manifest
from slimformer.artifact.probe import Probe, ask, difference
from slimformer.artifact.provenance import fingerprint
from slimformer.artifact.storage.handler import storage_of
from slimformer.errors import ArtifactError
from slimformer.models import quiet
from slimformer.models.loading import processor_class

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Loaded:
    """An artifact in memory: the model in eval mode, what prepares its inputs, and its manifest."""

    model: PreTrainedModel
    processor: Any
    manifest: Manifest


def load(
    folder: str | Path,
    check: bool = True,
    trust_remote_code: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
) -> Loaded:
    """Load an artifact with the class it was saved from.

    Args:
        folder: the folder that `save` wrote, or a copy of it.
        check: compare the SHA-256 of every file before anything is parsed; off saves reading the files twice.
        trust_remote_code: run code that the folder brings or refers to.
        device: where the model goes; the CPU when not given.
        dtype: type of the weights in memory; as saved when not given.
        base: for a mask, where its base is; when not given, where it was at saving, or beside the folder.
        cast_base: for a mask, whether its base may have been cast to 16 bits, which changes answers a little.

    Example:
        >>> loaded = load("out/sst2")
        >>> loaded.model(**loaded.processor("a fine film", return_tensors="pt")).logits
    """
    path = Path(folder).expanduser()
    manifest = checked_manifest(path, hashes=check, trust_code=trust_remote_code)
    model = load_model(path, dtype=dtype, trust_code=trust_remote_code, base=base, cast_base=cast_base)
    if type(model).__name__ != manifest.model.architecture:
        raise ArtifactError(
            f"{CONFIG} of artifact `{folder}` is for a `{type(model).__name__}`, and the artifact is a "
            f"`{manifest.model.architecture}`; copy the artifact again"
        )
    if device is not None:
        model.to(device)  # type: ignore[arg-type]
    processor = load_processor(path, trust_code=trust_remote_code, base=base, cast_base=cast_base)
    return Loaded(model, processor, manifest)


def checked_manifest(folder: Path, *, hashes: bool = True, trust_code: bool = False) -> Manifest:
    """Read the manifest and check everything that can be checked without parsing weights."""
    manifest = read_manifest(folder)
    check_files(folder, manifest.files, hashes=hashes, trust_code=trust_code)
    check_configs(folder, trust_code=trust_code)
    return manifest


def load_model(
    folder: Path,
    *,
    dtype: str | torch.dtype | None = None,
    trust_code: bool = False,
    base: str | Path | None = None,
    cast_base: bool = False,
) -> PreTrainedModel:
    """Load the model of a folder from safetensors; a weight too many, too few or of another shape is an error."""
    loader = _loader(folder, read_config(folder / CONFIG), trust_code)
    storage = storage_of(folder)
    storage.cast_base = cast_base
    return storage.read(folder, loader, dtype=dtype, base=base)


def load_processor(
    folder: Path, *, trust_code: bool = False, base: str | Path | None = None, cast_base: bool = False
) -> Any:
    """Load the tokenizer or image processor of a folder, or of its base if it is a mask; None when it has none."""
    import transformers

    reader = processor_class([path.name for path in folder.iterdir()])
    if reader is None:
        storage = storage_of(folder)
        storage.cast_base = cast_base
        return storage.processor(folder, base)
    name, auto = reader
    try:
        with quiet():
            return getattr(transformers, auto).from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=trust_code
            )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ArtifactError(
            f"the tokenizer or image processor of `{folder}` does not load: {reason}; "
            f"check {name} and the installed transformers version"
        ) from error


def _loader(folder: Path, config: dict[str, Any], trust_code: bool) -> tuple[Any, dict[str, Any]]:
    """Find the class named by the config, and what it must be told of code that is trusted."""
    import transformers

    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ArtifactError(
            f"{CONFIG} of `{folder}` gives the architectures {names!r}; it must name the one class that loads the model"
        )
    for auto, reference in (config.get("auto_map") or {}).items() if trust_code else ():
        if isinstance(reference, str) and reference.rpartition(".")[2] == names[0]:
            return getattr(transformers, auto), {"trust_remote_code": True}
    found = getattr(transformers, names[0], None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ArtifactError(
            f"{CONFIG} of `{folder}` names the class `{names[0]}`, which is no model of transformers "
            f"{transformers.__version__}; install the version it was saved with"
        )
    return found, {}


def architecture_of(folder: Path) -> type[PreTrainedModel]:
    """The class of Transformers that the config of a folder names."""
    found: type[PreTrainedModel] = _loader(folder, read_config(folder / CONFIG), trust_code=False)[0]
    return found


#: How far the outputs may lie from those recorded, to leave room for another machine's arithmetic.
RELATIVE, ABSOLUTE = 1e-4, 1e-5


@dataclass(frozen=True)
class Report:
    """What `verify` checked."""

    folder: str
    files: tuple[str, ...]
    bytes: int
    outputs: tuple[str, ...]
    max_difference: float


def verify(folder: str | Path, trust_remote_code: bool = False, base: str | Path | None = None) -> Report:
    """Check an artifact completely; an `ArtifactError` gives the first reason why it is not sound.

    The manifest and the sums of all files come first, and nothing else is parsed before they agree. Then
    the fingerprint of the weights, the loading of model and processor, and the probe, asked on the CPU in
    float32. A mask is verified on its base, which is found as `load` finds it.
    """
    path = Path(folder).expanduser()
    manifest = checked_manifest(path, trust_code=trust_remote_code)
    found = fingerprint(path)
    if found != manifest.model.fingerprint:
        raise ArtifactError(
            f"the weights of artifact `{folder}` have the fingerprint {found[:12]}… instead of "
            f"{manifest.model.fingerprint[:12]}…; they are not the ones saved, copy the artifact again"
        )
    probe = _read_probe(path)
    load_processor(path, trust_code=trust_remote_code, base=base)
    model = load_model(path, dtype="float32", trust_code=trust_remote_code, base=base)
    try:
        apart = difference(probe.outputs, ask(model, probe.inputs), relative=RELATIVE, absolute=ABSOLUTE)
    except ArtifactError as error:
        raise ArtifactError(
            f"artifact `{folder}` does not give the outputs recorded at saving: {error.reason}; weights, config or "
            "the transformers version are not those of the saving"
        ) from error
    size = sum(sums.bytes for sums in manifest.files.values())
    return Report(str(folder), tuple(sorted(manifest.files)), size, tuple(sorted(probe.outputs)), apart)


def _read_probe(folder: Path) -> Probe:
    path = folder / PROBE
    if not path.is_file():
        raise ArtifactError(f"artifact `{folder}` lacks `{PROBE}`; save it again")
    return Probe.from_bytes(path.read_bytes(), str(path))
