"""Artifacts: folders that hold a model, how it came about and the proof that it is unharmed.

Importing this package is quick: torch and transformers are loaded by the functions that need them,
and nothing here imports training.
"""

from slimformer.artifact.converting.merging import merge
from slimformer.artifact.converting.packing import pack
from slimformer.artifact.converting.unpacking import unpack
from slimformer.artifact.loading import Loaded, Report, load, verify
from slimformer.artifact.manifest import Base, FileSum, Manifest, ModelRecord, Rounded, Step, TaskRecord, read_manifest
from slimformer.artifact.provenance import fingerprint
from slimformer.artifact.saving import check_description, republish, save
from slimformer.artifact.storage.mask import MaskStorage
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.artifact.storage.precision import round_weights

__all__ = [
    "Base",
    "FileSum",
    "Loaded",
    "Manifest",
    "MaskFile",
    "MaskStorage",
    "ModelRecord",
    "Report",
    "Rounded",
    "Step",
    "TaskRecord",
    "check_description",
    "fingerprint",
    "load",
    "merge",
    "pack",
    "read_manifest",
    "republish",
    "round_weights",
    "save",
    "unpack",
    "verify",
]
