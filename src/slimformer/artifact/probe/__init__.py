"""The probe of an artifact: what a small batch is answered by the saved model, and by the loaded one."""

from slimformer.artifact.probe.answers import (
    Probe,
    ProbeOutput,
    ask,
    difference,
    read_probe,
    relative_difference,
    rounding_spec,
    sampled,
)
from slimformer.artifact.probe.batch import ProbeInput, batch_for, given_batch, noise

__all__ = [
    "Probe",
    "ProbeInput",
    "ProbeOutput",
    "ask",
    "batch_for",
    "difference",
    "given_batch",
    "noise",
    "read_probe",
    "relative_difference",
    "rounding_spec",
    "sampled",
]
