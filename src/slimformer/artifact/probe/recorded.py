"""Whether a loaded artifact reads inputs and answers as recorded at saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimformer.artifact import reading
from slimformer.artifact.layout import PROBE, READING
from slimformer.artifact.probe.answers import read_probe, rounding_spec
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

    from slimformer.artifact.loading import Loaded
    from slimformer.artifact.probe.answers import Probe

#: How far the outputs may lie from those recorded, relative to the largest and absolute, by the bytes of a weight:
#: room for another machine's arithmetic, and for that of a shorter type than the recording was in.
TOLERANCE = {1: (0.5, 0.05), 2: (0.2, 0.02), 4: (1e-4, 1e-5), 8: (1e-4, 1e-5)}


def check_recorded(folder: Path, loaded: Loaded, bytes_each: int) -> float:
    """Refuse what does not read inputs and answer the probe as recorded at saving; return the largest difference.

    Args:
        folder: The folder.
        loaded: What was loaded from it.
        bytes_each: Bytes of a weight, which say how far answers may lie apart.
    """
    model, probe = loaded.model, check_reading(folder, loaded)
    relative, absolute = TOLERANCE[bytes_each]
    try:
        return probe.check(model, relative=relative, absolute=absolute)
    except ArtifactError as error:
        hint = "weights, config or the transformers version are not those of the saving"
        if not probe.unrounded and rounding_spec(model) is not None:
            hint += (
                ", or another machine rounds an activation to the next step, which this early artifact does not allow "
                "for: if you trust it, load it with `--no-check` (`check=False`) and save it again"
            )
        raise ArtifactError(
            f"artifact `{folder}` does not give the outputs recorded at saving: {error.reason}; {hint}"
        ) from error


def check_reading(folder: Path, loaded: Loaded) -> Probe:
    """Refuse what does not read inputs as recorded at saving; return the probe that says how they were answered."""
    probe = read_probe(folder)
    for name, digest in {READING: probe.reading, **probe.bound}.items():
        file = loaded.manifest.files.get(name)
        if digest is not None and (file is None or file.sha256 != digest):
            raise ArtifactError(
                f"`{name}` of artifact `{folder}` is missing or not the one its `{PROBE}` was written with; copy the "
                "artifact again"
            )
    reading.check(folder, loaded.model.config, loaded.processor, loaded.manifest.task)
    return probe
