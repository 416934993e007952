"""Verifying an artifact: that every byte is as it was saved and that the model still answers the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slimformer.artifact.layout import PROBE
from slimformer.artifact.loading import checked_manifest, load_model, load_processor
from slimformer.artifact.probe import Probe, ask, difference
from slimformer.artifact.weights import fingerprint
from slimformer.errors import ArtifactError

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
