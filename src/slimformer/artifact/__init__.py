"""Artifacts: folders that hold a model, how it came about and the proof that it is unharmed.

Importing this package is quick: torch and transformers are loaded by the functions that need them,
and nothing here imports training.
"""

from typing import TYPE_CHECKING

from slimformer.lazy import lazy

if TYPE_CHECKING:
    from slimformer.artifact.converting.merging import merge
    from slimformer.artifact.converting.packing import pack
    from slimformer.artifact.converting.unpacking import unpack
    from slimformer.artifact.loading import Loaded, Report, verify
    from slimformer.artifact.manifest import (
        Base,
        FileSum,
        Manifest,
        ModelRecord,
        Rounded,
        Step,
        TaskRecord,
        read_manifest,
    )
    from slimformer.artifact.opening.engines import load
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
__getattr__ = lazy(
    __name__,
    {
        "converting.merging": ("merge",),
        "converting.packing": ("pack",),
        "converting.unpacking": ("unpack",),
        "loading": ("Loaded", "Report", "verify"),
        "manifest": (
            "Base",
            "FileSum",
            "Manifest",
            "ModelRecord",
            "Rounded",
            "Step",
            "TaskRecord",
            "read_manifest",
        ),
        "opening.engines": ("load",),
        "provenance": ("fingerprint",),
        "saving": ("check_description", "republish", "save"),
        "storage.mask": ("MaskStorage",),
        "storage.mask_file": ("MaskFile",),
        "storage.precision": ("round_weights",),
    },
)


def __dir__() -> list[str]:
    return __all__
