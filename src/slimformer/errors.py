"""Every error slimformer raises on purpose.

A message says what happened, the value seen and what to do next, in that order; lower case, no full
stop, the offending name in backquotes. The command line prints it as one line without a traceback.

Values come from users and from files of strangers. So a message is made fit to be read in one place, here: whatever
steers a terminal is made visible, and a value of any length is shortened.
"""

from __future__ import annotations

import re
import reprlib

#: A value in a message, and a message as a whole, are cut to so many characters.
VALUE, MESSAGE = 200, 2_000
#: What steers a terminal (C0, C1), what turns the direction of text, and halves of characters; lines and tabs stay.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_QUOTED = re.compile(rf"`([^`]{{{VALUE + 1},}})`")


def visible(text: str) -> str:
    """A text in which control characters are spelled out: a backslash and their number."""
    return _HIDDEN.sub(_spelled, text)


def shorten(text: str, limit: int = VALUE) -> str:
    """A text of at most `limit` characters: the beginning and, because it tells paths apart, the end."""
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end - 1]}…{text[-end:]}"


def presentable(message: str) -> str:
    """A message of bounded length without anything that steers a terminal."""
    return visible(shorten(_QUOTED.sub(lambda match: f"`{shorten(match[1])}`", message), MESSAGE))


def describe(value: object) -> str:
    """A value as messages show it; of a large one only a part is ever looked at."""
    if isinstance(value, str):
        return shorten(value)
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 3, 60, 60
    try:
        return shorten(" ".join(short.repr(value).split()))
    except ValueError:  # an integer of thousands of digits
        return f"a very long {type(value).__name__}"


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"


class SlimformerError(Exception):
    """Base of all errors a user can cause and mend."""

    @property
    def reason(self) -> str:
        """What happened and the value seen, without what to do next."""
        return str(self).partition("; ")[0]

    def __str__(self) -> str:
        return presentable(super().__str__())


class PathError(SlimformerError):
    """A text cannot be the path of anything."""


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


class SizeError(SlimformerError):
    """A size, an allocation or a budget that a model does not have."""


class DataError(SlimformerError):
    """A file, a column or a value of a data set cannot be used for the task."""


class ArtifactError(SlimformerError):
    """An artifact cannot be written, or is not what was saved."""


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
