"""How a failure reaches the user: one line that says what happened, the value seen and what to do."""

from __future__ import annotations

import difflib
import errno
import re
import signal
import sys
import threading
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from slimformer.errors import ConfigError, PathError, UsageError, describe, presentable
from slimformer.registry import COMMANDS, METHODS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from cyclopts import CycloptsError

#: Settings that a command takes and no config has.
OTHER_FLAGS = frozenset({"length", "numbers"})
#: What the Trainer of Transformers calls our flags.
TRAINERS_FLAGS = {
    "learning-rate": "lr",
    "num-train-epochs": "epochs",
    "output-dir": "out",
    "model-name-or-path": "model",
    "per-device-train-batch-size": "batch-size",
    "per-device-eval-batch-size": "batch-size",
    "gradient-accumulation-steps": "accumulation",
    "warmup-ratio": "warmup",
    "max-seq-length": "max-length",
    "overwrite-output-dir": "overwrite",
}
#: How alike a flag has to be to one that there is, to be taken for it.
ALIKE = 0.7
#: A word in backquotes that may be a setting: not what one is set to, nor what is learned, nor what there is not.
SINGLE_WORD = re.compile(
    r"(?<!is )(?<!mean )(?<!no order )(?<!` )(?<!= )(?<!term )(?<!learn )(?<!add )`([a-z]+[0-9]*)`"
)
#: Such a word where it is a setting for sure: a value follows.
COMPARED = re.compile(r"`([a-z]+[0-9]*)`(?= = `)")


def fail(
    error: Exception,
    code: int,
    debug: bool,
    *,
    message: str = "",
    hint: str = "",
    by_flags: bool = False,
    values: Collection[str] = (),
) -> NoReturn:
    """Write a line about an error and exit.

    Args:
        error: What happened.
        code: The exit code.
        debug: Whether to raise the error instead, for its traceback.
        message: What the line says; by default what the error does.
        hint: What to add to the line.
        by_flags: Whether settings are called by their flags: the error may speak of Python's names.
        values: What was typed: a folder `keep` is no flag, though there is a setting of that name.
    """
    if debug:
        raise error
    message = " ".join(presentable(message or str(error)).split())
    message = message if message.endswith("...") else message.rstrip(".")
    if by_flags:
        message = _with_flags(message, single=isinstance(error, ConfigError), values=values)
    sys.stderr.write(f"error: {message}{hint}\n")
    sys.exit(code)


class Ended(KeyboardInterrupt):
    """Somebody asks the process to end: a scheduler, or a terminal that is closed.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ending() -> Iterator[None]:
    """Let signals that end a process do so as Ctrl-C does, so that nothing half-written is left.

    One that is ignored, as under `nohup`, stays so.
    """

    def end(number: int, _: object) -> NoReturn:
        raise Ended(number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # signals are set by the main thread alone
    numbers = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def check_surroundings() -> None:
    """Refuse a folder that is gone, which ends the process inside a library; write what the terminal cannot show."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise PathError("the current folder does not exist any more; change to another one") from None
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def fail_unexpectedly(error: Exception, debug: bool) -> NoReturn:
    """Write a line about an error that is none of ours; that memory ran out is said in our words."""
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        fail(error, 1, debug, message="there is not enough memory for this; free some, or give less at a time")
    fail(error, 1, debug, hint=hint_of(error))


def hint_of(error: Exception) -> str:
    """What to add to an error that is none of ours: what to do about a full disk, else how to find the place."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "; free some space, or write elsewhere"
    return f" ({type(error).__name__}, unexpected; `--debug` shows where)"


def in_our_words(error: CycloptsError) -> Exception:
    """What is wrong with a setting, a flag or a value without one, in our words; other usage errors as they are."""
    from cyclopts.exceptions import UnknownCommandError, UnknownOptionError, UnusedCliTokensError
    from pydantic import ValidationError

    from slimformer.config import Config, explain

    cause = error.__cause__ or error.__context__
    if isinstance(cause, ValidationError):
        return ConfigError(_with_flags(explain(cause, Config, flags=True)))
    if isinstance(error, UnknownCommandError):
        return _unknown_command((error.unused_tokens or [""])[0])
    if isinstance(error, UnusedCliTokensError):
        left = describe(" ".join(error.unused_tokens or ()))
        return UsageError(f"`{left}` is left over; put a flag before each value, and quotes around one with spaces")
    if isinstance(error, UnknownOptionError):
        flags = [name for argument in error.argument_collection if argument.parse for name in argument.names]
        return _unknown_flag((error.token.keyword or error.token.value).split("=", 1)[0], flags)
    return error


class NoCommandError(UsageError):
    """There is no command of a name."""


def _unknown_command(name: str) -> NoCommandError:
    """An error about a command that there is not, with the one that is probably meant."""
    near = difflib.get_close_matches(name, _commands(), n=1)
    hint = f" (do you mean `{near[0]}`?)" if near else ""
    return NoCommandError(f"there is no command `{describe(name)}`{hint}")


def list_commands() -> str:
    """All commands, a line each."""
    commands = _commands()
    width = max(map(len, commands))
    return "\n".join(f"  {name:<{width}}  {help_line}" for name, help_line in commands.items())


def _commands() -> dict[str, str]:
    """Every command and what it does."""
    return {name: registry.help(name) for registry in (METHODS, COMMANDS) for name in registry}


def _unknown_flag(flag: str, flags: list[str]) -> UsageError:
    """An error about a flag that a command does not have, with the one that is probably meant."""
    elsewhere = f"--{TRAINERS_FLAGS.get(flag.strip('-').replace('_', '-'))}"
    near = [elsewhere] if elsewhere in flags else difflib.get_close_matches(flag, flags, n=1, cutoff=ALIKE)
    hint = f" (do you mean `{near[0]}`?)" if near else ""
    return UsageError(f"there is no flag `{describe(flag)}`{hint}")


def _with_flags(message: str, *, single: bool = True, values: Collection[str] = ()) -> str:
    """A message in which `max_length` is called `--max-length`.

    Args:
        message: The message.
        single: Whether settings of one word are meant too; where a message is of data, `label` may be a column.
        values: Words that are values, even where a setting has such a name.
    """
    from slimformer.config import Config

    known, kinds = set(OTHER_FLAGS), [Config]
    while kinds:
        kind = kinds.pop()
        if not kind.__qualname__.endswith(".Options"):  # those stand in brackets and have no flags
            known |= set(kind.model_fields)
        kinds += kind.__subclasses__()
    known -= set(values)

    def as_flag(found: re.Match[str]) -> str:
        return f"`--{found[1].replace('_', '-')}`" if found[1] in known else found[0]

    message = message.replace(" (`overwrite=True`)", "").replace("overwrite=True", "`--overwrite`")
    message = (SINGLE_WORD if single else COMPARED).sub(as_flag, message)
    return re.sub(r"`?(?<![\w/.-])([a-z]+(?:_[a-z]+)+)(?![\w/.-])`?", as_flag, message)
