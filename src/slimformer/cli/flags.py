"""Flags that several commands share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from slimformer.cli.output import print_json

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, Parameter(name="--quiet", negative="", help="Say nothing while working.")]
Resume = Annotated[
    bool,
    Parameter(name="--resume", negative="", help="Go on with an unfinished run, or start it if there is none."),
]
Overwrite = Annotated[bool, Parameter(name="--overwrite", negative="", help="Replace a result that is there.")]
ConfigFile = Annotated[
    Path | None, Parameter(name="--config", help="YAML file with settings; flags given besides win.")
]


@dataclass(frozen=True)
class RunFlags:
    """The flags of every command that trains."""

    config: ConfigFile = None
    resume: Resume = False
    overwrite: Overwrite = False
    as_json: Json = False
    quiet: Quiet = False

    def manner(self) -> dict[str, Any]:
        """What a method is told of how to go about its run."""
        return {"resume": self.resume, "overwrite": self.overwrite, "quiet": self.quiet, "command": command_line()}

    def show(self, summary: Mapping[str, Any], as_text: Callable[[Mapping[str, Any]], None]) -> None:
        """Write what came out, as one JSON object or as text."""
        (print_json if self.as_json else as_text)(summary)


def command_line() -> str:
    """The command as it was typed, for the record."""
    return shlex.join(["slimformer", *sys.argv[1:]])
