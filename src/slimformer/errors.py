"""Every error slimformer raises on purpose.

A message says what happened, the value seen and what to do next, in that order; lower case, no full
stop, the offending name in backquotes. The command line prints it as one line without a traceback.
"""

from __future__ import annotations


class SlimformerError(Exception):
    """Base of all errors a user can cause and mend."""


class RegistryError(SlimformerError):
    """A method, term, format, kind or way of storing is not known, or its name is taken."""


class FormatError(SlimformerError):
    """Numbers do not fit a number format, its granularity or its packing."""


class CheckpointError(SlimformerError):
    """A model name or folder cannot be resolved or read."""


class AnatomyError(SlimformerError):
    """A model does not have the part that was asked for, or the part cannot be changed that way."""


class UnknownFamilyError(AnatomyError):
    """A model belongs to a family that is not declared in `slimformer.anatomy`."""


class TapError(SlimformerError):
    """A record was asked for that cannot be taken from this model or this forward."""


class ViewError(SlimformerError):
    """A view does not fit the weight or the views already on it."""


class DataError(SlimformerError):
    """A file, a column or a value of a data set cannot be used for the task."""


class ArtifactError(SlimformerError):
    """An artifact cannot be written, or is not what was saved."""

    @property
    def reason(self) -> str:
        """What happened and the value seen, without what to do next."""
        return str(self).partition("; ")[0]


class ConfigError(SlimformerError):
    """A setting is unknown, impossible or missing."""


class UsageError(ConfigError):
    """A setting is missing, or has a value it never takes."""


class TrainingError(SlimformerError):
    """A run cannot start, go on or be resumed."""


class DivergenceError(TrainingError):
    """A loss became infinite or no number."""


class ObjectiveError(SlimformerError):
    """A loss cannot be computed from these tensors or settings."""
