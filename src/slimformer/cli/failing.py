"""How a failure reaches the user: one line that says what happened, the value seen and what to do."""

from __future__ import annotations

import errno
import re
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from slimformer.errors import ConfigError, PathError, presentable

if TYPE_CHECKING:
    from cyclopts import CycloptsError

#: Settings that a command takes and no config has.
OTHER_FLAGS = frozenset({"length", "numbers"})
#: A word in backquotes that may be a setting: not what one is set to, nor what is learned.
SINGLE_WORD = re.compile(r"(?<!is )(?<!` )(?<!= )(?<!term )(?<!learn )(?<!add )`([a-z]+[0-9]*)`")
#: Such a word where it is a setting for sure: a value follows.
COMPARED = re.compile(r"`([a-z]+[0-9]*)`(?= = `)")


def fail(error: Exception, code: int, debug: bool, *, hint: str = "", by_flags: bool = False) -> NoReturn:
    """Write a line about an error and exit.

    Args:
        error: What happened.
        code: The exit code.
        debug: Whether to raise the error instead, for its traceback.
        hint: What to add to the line.
        by_flags: Whether settings are called by their flags: the error may speak of Python's names.
    """
    if debug:
        raise error
    message = " ".join(presentable(str(error)).split())
    message = message if message.endswith("...") else message.rstrip(".")
    if by_flags:
        message = _with_flags(message, single=isinstance(error, ConfigError))
    sys.stderr.write(f"error: {message}{hint}\n")
    sys.exit(code)


def check_surroundings() -> None:
    """Refuse a folder that is gone, which ends the process inside a library; write what the terminal cannot show."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise PathError("the current folder does not exist any more; change to another one") from None
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def hint_of(error: Exception) -> str:
    """What to add to an error that is none of ours: what to do about a full disk, else how to find the place."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "; free some space, or write elsewhere"
    return f" ({type(error).__name__}, unexpected; `--debug` shows where)"


def in_our_words(error: CycloptsError) -> Exception:
    """What pydantic found wrong with a setting, in our words; other usage errors as they are."""
    from pydantic import ValidationError

    from slimformer.config import Config, explain

    cause = error.__cause__ or error.__context__
    if not isinstance(cause, ValidationError):
        return error
    return ConfigError(_with_flags(explain(cause, Config, flags=True)))


def _with_flags(message: str, *, single: bool = True) -> str:
    """A message in which `max_length` is called `--max-length`.

    Args:
        message: The message.
        single: Whether settings of one word are meant too; where a message is of data, `label` may be a column.
    """
    from slimformer.config import Config

    known, kinds = set(OTHER_FLAGS), [Config]
    while kinds:
        kind = kinds.pop()
        known |= set(kind.model_fields)
        kinds += kind.__subclasses__()

    def as_flag(found: re.Match[str]) -> str:
        return f"`--{found[1].replace('_', '-')}`" if found[1] in known else found[0]

    message = message.replace("overwrite=True", "`--overwrite`")
    message = (SINGLE_WORD if single else COMPARED).sub(as_flag, message)
    return re.sub(r"`?(?<![\w/.-])([a-z]+(?:_[a-z]+)+)(?![\w/.-])`?", as_flag, message)
