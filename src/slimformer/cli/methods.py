"""The commands of the methods, one function for all of them made of what the registry says, and what shows them."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from slimformer.cli.output import (
    ConfigFile,
    DryRun,
    Json,
    Overwrite,
    PushToHub,
    Quiet,
    Resume,
    print_json,
    print_line,
    print_table,
)
from slimformer.errors import visible
from slimformer.registry import METHODS


@dataclass(frozen=True)
class RunFlags:
    """The flags of every command that runs a method."""

    config: ConfigFile = None
    resume: Resume = False
    overwrite: Overwrite = False
    as_json: Json = False
    quiet: Quiet = False
    dry_run: DryRun = False
    push_to_hub: PushToHub = None


def command_line() -> str:
    """The command as it was typed, for the record."""
    return visible(shlex.join(["slimformer", *sys.argv[1:]]))


def __getattr__(name: str) -> Callable[..., None]:
    """The command of a method; the command line looks it up when it is called."""
    if name not in METHODS:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return command_of(name)


def command_of(name: str) -> Callable[..., None]:
    """Make the command of a method from its settings."""
    method: Any = METHODS.get(name)
    settings_class: Any = method.config_class

    def command(
        *,
        settings: Annotated[settings_class, Parameter(name="*")] = settings_class(),  # noqa: B008 (frozen)
        flags: Annotated[RunFlags, Parameter(name="*")] = RunFlags(),
    ) -> None:
        from slimformer.methods.method import RunOptions
        from slimformer.methods.rehearsal import carry_out

        config = settings_class.read(flags.config, settings.given())
        config.require(*method.for_settings(config).required)
        options = RunOptions(
            flags.resume,
            flags.overwrite,
            flags.quiet,
            command_line(),
            dry_run=flags.dry_run,
            push_to_hub=flags.push_to_hub,
        )
        result = carry_out(method, config, options)
        if flags.as_json:
            print_json(result.summary())
        else:
            for line in result.lines():
                print_line(line)

    command.__name__ = name
    command.__doc__ = (settings_class.__doc__ or METHODS.help(name)).strip()
    return command


def demo(*, out: str = "demo", as_json: Json = False, quiet: Quiet = False) -> None:
    """Train and measure a real model on real reviews in a few minutes, offline, and write a report.

    Args:
        out: Folder for the artifacts and the report; what an earlier demo left there, unchanged, is replaced.
    """
    import time

    from slimformer.demo import COLUMNS, run_demo

    start = time.monotonic()
    rows, report = run_demo(out, quiet=quiet)
    seconds = time.monotonic() - start
    if as_json:
        print_json({"rows": [vars(row) for row in rows], "report": str(report), "seconds": round(seconds, 1)})
        return
    print_table(f"film reviews, {seconds:.0f} s", COLUMNS, [row.cells() for row in rows])
    print_line(f"report: {report}")
